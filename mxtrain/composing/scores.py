"""The presets with a score, and the overrides that compose them."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from mxtrain.archive.score import Score, read_score
from mxtrain.composing.composer import Composer
from mxtrain.config.override_text import key_of, quote
from mxtrain.errors import ConfigError, did_you_mean

EXPERIMENT = "experiment"


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
