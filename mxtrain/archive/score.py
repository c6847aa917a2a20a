"""The score of a preset: the value that its run reaches, as its YAML file states it under `score`.

The score is no setting: the loader of configurations removes it, so checkpoints and overrides do not contain it, and a
preset that overrides another one does not inherit it. A better value always passes. A preset whose result depends on
the machine has no score.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Literal, Optional, Sequence

import pydantic
import yaml
from typing_extensions import Annotated

from mxtrain.config.groups import Description
from mxtrain.config.override_text import key_of
from mxtrain.config.specs import validate
from mxtrain.errors import ConfigError, reason_of
from mxtrain.files.regular_files import read_regular_text
from mxtrain.types import NonNegative, NonNegativeFloat, Spec

SCORE = "score"
"""The key of a preset that describes its score. It is no setting: composing leaves it out."""
Split = Literal["val", "test"]


class Score(Spec):
    """The score of a preset."""

    metric: Annotated[str, pydantic.StringConstraints(pattern=r"^(val|test)/\w+$")]
    """The measured value, e.g. test/accuracy."""
    value: float
    """The value, in the unit of the metric."""
    tolerance: NonNegativeFloat
    """Largest difference in the worse direction that passes."""
    seed: NonNegative = 0
    """`trainer.seed` of the run."""
    source: str
    """Source of the value: "measured" if mxtrain measured it, otherwise the publication."""
    needs: Dict[str, str] = {}
    """Settings that must be given, such as `dataset.root`, and what they name."""


def read_score(file: Path) -> Optional[Score]:
    """Reads the score of a preset; None if it has none. A preset does not inherit the score of another one.

    Raises:
        ConfigError: the file cannot be read, or its score is invalid.
    """
    try:
        content = yaml.safe_load(read_regular_text(file))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {reason_of(error)}.") from None
    score = content.get(SCORE) if isinstance(content, dict) else None
    if score is None:
        return None
    if not isinstance(score, dict):
        raise ConfigError(f"{file}: {SCORE} must name metric, value, tolerance and source.")
    return validate(Score, {str(name): value for name, value in score.items()}, SCORE, lambda path: str(file))


def score_table(folder: Path) -> List[str]:
    """Returns the rows of the Markdown table of all presets with a score, in the order of their names."""
    rows = []
    for file in sorted(folder.glob("*.yaml")):
        score = read_score(file)
        if score is not None:
            needs = ", ".join(f"`{name}`" for name in score.needs) or "nothing"
            rows.append(
                f"| `{file.stem}` | `{score.metric}` | {score.value:g} | {score.tolerance:g} | {score.seed} "
                f"| {needs} | {score.source} |"
            )
    return rows


def refuse_missing_needs(name: str, score: Score, overrides: Sequence[str]) -> None:
    """Checks that all settings that the preset needs were typed. Their paths are checked when the data are opened.

    Raises:
        ConfigError: a setting is missing.
    """
    missing = [key for key in score.needs if key not in map(key_of, overrides)]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: not given. {needs_of(name, score)}")


def needs_of(name: str, score: Score) -> str:
    """Returns a sentence that says what the preset needs; empty if it needs nothing."""
    if not score.needs:
        return ""
    return f"experiment={name} needs {'; '.join(f'{key}: {need}' for key, need in score.needs.items())}."


def refuse_unmeasured(name: str, score: Score, description: Description) -> None:
    """Checks that the run computes the metric.

    Raises:
        ConfigError: it does not.
    """
    split, metric = score.metric.split("/", 1)
    if metric != "loss" and metric not in description.metric:
        raise ConfigError(
            f"experiment={name} is scored by {score.metric}, which is not measured here. Measured are: "
            f"{', '.join(description.metric)}."
        )
    if split == "test" and not description.trainer.test:
        raise ConfigError(f"experiment={name} is scored on the test split: leave out trainer.test=false.")
