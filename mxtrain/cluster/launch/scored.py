"""Finds presets with a score, and prepares the run of one whose result is compared with its score."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from mxtrain.archive.score import Score, needs_of, read_score, refuse_missing_needs, refuse_unmeasured
from mxtrain.cluster.launch.sweep import direction_of, refuse_missing_data
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.config.override_text import config_flags, key_of, quote
from mxtrain.errors import ConfigError, DataError, did_you_mean
from mxtrain.training.prepared_run import PreparedRun

EXPERIMENT = "experiment"


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


def scores_of(composer: Composer) -> Dict[str, Score]:
    """Returns the scores of all presets that have one, by name."""
    found = ((name, _score_of(name, composer)) for name in composer.options(EXPERIMENT))
    return {name: score for name, score in found if score is not None}


def find_score(names: Sequence[str], composer: Composer) -> Tuple[str, Score]:
    """Returns the preset that was named, and its score. Raises: ConfigError: there is none, or more than one."""
    name, *more = [word.partition("=")[2] or word for word in names]
    options = composer.options(EXPERIMENT)
    scored = [option for option in options if option == name or _score_of(option, composer) is not None]
    if more:
        raise ConfigError(f"score takes one preset, not also '{more[0]}'.")
    if name not in options:
        raise ConfigError(
            f"there is no preset '{name}'.{did_you_mean(name, options)} Presets with a score: {', '.join(scored)}."
        )
    score = _score_of(name, composer)
    if score is None:
        raise ConfigError(
            f"experiment={name} has no score: nobody has published or measured one. Presets with a score: "
            f"{', '.join(one for one in scored if one != name)}."
        )
    return name, score


def words_of_score(name: str, score: Score, overrides: Sequence[str], run_dir: Optional[str]) -> List[str]:
    """Returns the overrides that compose the run of a preset."""
    words = [f"{EXPERIMENT}={name}", *overrides]
    if "trainer.seed" not in map(key_of, overrides):
        words.append(f"trainer.seed={score.seed}")
    return words if run_dir is None else [*words, f"hydra.run.dir={quote(run_dir)}"]


def _score_of(name: str, composer: Composer) -> Optional[Score]:
    file = composer.find_file(f"{EXPERIMENT}/{name}")
    return None if file is None else read_score(file)
