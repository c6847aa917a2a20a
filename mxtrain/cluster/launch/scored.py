"""Prepares the run of a preset whose result is compared with its score."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

from mxtrain.archive.score import Score, needs_of, refuse_missing_needs, refuse_unmeasured
from mxtrain.cluster.launch.sweep import direction_of, refuse_missing_data
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.composing.scores import find_score, words_of_score
from mxtrain.config.override_text import config_flags
from mxtrain.errors import DataError
from mxtrain.training.prepared_run import PreparedRun


def prepare_score(
    names: Sequence[str],
    overrides: Sequence[str],
    composer: Composer,
    run_dir: Optional[str] = None,
    config_dirs: Sequence[str] = (),
) -> Tuple[str, Score, PreparedRun, str]:
    """Composes and checks the run of a preset.

    Args:
        names: the name of the preset, which must be the only one.
        overrides: further overrides.
        composer: composes.
        run_dir: run directory; by default that of `train`.
        config_dirs: folders of the user's own groups and options.

    Returns:
        The arguments of `score_run`: name and score of the preset, the run, and the better direction of the metric.

    Raises:
        ConfigError: there is no such preset, it has no score, or the run is wrong or lacks a setting.
        DataError: the data of the preset are missing.
    """
    name, score = find_score(names, composer)
    refuse_missing_needs(name, score, overrides)
    composed, description = compose_and_check(composer, words_of_score(name, score, overrides, run_dir))
    refuse_unmeasured(name, score, description)
    try:
        refuse_missing_data(description.dataset)
    except DataError as error:
        raise DataError(f"{error} {needs_of(name, score)}".rstrip()) from None
    # Imported only here, because it is slow to load.
    from mxtrain.cluster.launch.run import prepare_run

    prepared = prepare_run(composed, description, config_flags(config_dirs))
    return name, score, prepared, direction_of(description, score.metric, "score.metric")
