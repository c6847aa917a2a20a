"""Averages the weights of several runs (model soups) into a new checkpoint.

Members are measured again with the network and validation split of the first run, because their recorded metrics may be
of another monitor or split. Runs that were validated with other samples are rejected, folds in particular: a soup would
be chosen on training data.

Source: Wortsman et al., "Model soups: averaging weights of multiple fine-tuned models improves accuracy without
increasing inference time", ICML 2022, https://arxiv.org/abs/2203.05482, recipe 1 (greedy) and the uniform soup.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Sequence

from mxtrain.checkpoint.average import MODEL, WeightMean, weights_to_use, with_choices, write_folder
from mxtrain.checkpoint.contents import Checkpoint, Snapshot
from mxtrain.checkpoint.ranking import VAL_LOSS
from mxtrain.config.specs import shown
from mxtrain.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Json, JsonObject

Measure = Callable[[Mapping[str, "np.ndarray"], str], Mapping[str, float]]
"""Function (weights, their source for messages) -> loss and metrics of the validation split, by tag (val/...)."""
GREEDY, UNIFORM = "greedy", "uniform"
FOLD_SETTINGS = ("folds", "fold", "fold_stratify", "fold_groups")
"""Settings of the trainer that choose the validation samples."""
ONLY_FOR_TRAINING = ("batch_size", "eval_batch_size", "augment", "sampler", "class_weights", "prefetch", "num_workers")
"""Settings of a dataset that may differ between members, because they do not choose the validation samples."""


@dataclass(frozen=True)
class Ingredient:
    """A checkpoint that was considered for a soup.

    Attributes:
        checkpoint: the checkpoint.
        value: the monitored value of its own weights.
        kept: True if its weights are in the soup.
    """

    checkpoint: Checkpoint
    value: float
    kept: bool = False


@dataclass(frozen=True)
class Soup:
    """Averaged weights of several runs.

    Attributes:
        method: "greedy" or "uniform".
        monitor: tag of the value by which members are compared, e.g. val/accuracy.
        members: all checkpoints that were considered, best first.
        weights: mean of the kept checkpoints, by structural name.
        values: loss and metrics of `weights`, by tag.
        choices: thresholds and the like that were chosen with `values`, by the name of their state.
    """

    method: str
    monitor: str
    members: Sequence[Ingredient]
    weights: Mapping[str, np.ndarray]
    values: Mapping[str, float]
    choices: Mapping[str, JsonObject] = field(default_factory=dict)


def require_same_validation(checkpoints: Sequence[Checkpoint]) -> None:
    """Checks that checkpoints read the same inputs, and were validated with the same samples.

    Otherwise a member could have been trained with the samples that the soup is validated with.

    Raises:
        ConfigError: one of them differs from the first; the message names the difference.
    """
    first = checkpoints[0]
    for other in checkpoints[1:]:
        runs = [checkpoint.state["run"] for checkpoint in (first, other)]
        first_settings, other_settings = (_split_settings(run["description"]) for run in runs)
        for name in [*first_settings, *other_settings]:
            if first_settings.get(name) != other_settings.get(name):
                raise ConfigError(
                    f"soup: {first.path} and {other.path} were not validated with the same samples: {name} is "
                    f"{shown(first_settings.get(name))} and {shown(other_settings.get(name))}. Average runs of the "
                    "same training and validation split."
                )
        if runs[0]["input"] != runs[1]["input"]:
            changed = [name for name, value in runs[0]["input"].items() if value != runs[1]["input"].get(name)]
            raise ConfigError(
                f"soup: the inputs of {first.path} and {other.path} are not the same ({', '.join(changed)}). "
                "Average runs that were trained with the same data and the same preprocessing."
            )


def _split_settings(description: JsonObject) -> Dict[str, object]:
    groups = map(description.get, ("dataset", "trainer"))
    dataset, trainer = (group if isinstance(group, dict) else {} for group in groups)
    return {
        **{f"dataset.{name}": value for name, value in dataset.items() if name not in ONLY_FOR_TRAINING},
        **{f"trainer.{name}": trainer.get(name) for name in FOLD_SETTINGS},
    }


def build_soup(checkpoints: Sequence[Checkpoint], method: str, monitor: str, direction: str, measure: Measure) -> Soup:
    """Averages the weights of checkpoints into a soup.

    The uniform soup is the mean of all. The greedy soup begins with the best checkpoint; each further one, best first,
    is added if the mean with it is at least as good on the validation split.

    Args:
        checkpoints: checkpoints of the same network.
        method: "greedy" or "uniform".
        monitor: tag of the value to compare, e.g. val/accuracy.
        direction: "max" if larger values are better, otherwise "min".
        measure: function that validates weights.

    Raises:
        CheckpointError: the checkpoints belong to different networks, or none has a finite value.
    """
    sign = -1.0 if direction == "max" else 1.0
    candidates = [Ingredient(c, measure(weights_to_use(c), str(c.path))[monitor]) for c in checkpoints]
    ranked = sorted(candidates, key=lambda c: sign * c.value if math.isfinite(c.value) else math.inf)
    if not math.isfinite(ranked[0].value):
        raise CheckpointError(f"soup: no checkpoint has a finite {monitor}. Look at the runs with `mxtrain eval`.")
    total, members, best = WeightMean(), [], math.inf
    values: Mapping[str, float] = {}
    for member in ranked:
        weights = weights_to_use(member.checkpoint)
        source = str(member.checkpoint.path)
        if method == GREEDY and total.count:
            new_values = measure(total.mean_with(weights), f"the mean with {source}")
            kept = sign * new_values[monitor] <= best  # false if it is not a number
        else:
            # The first member is the soup of one, whose value is known; a uniform soup takes all.
            new_values, kept = {monitor: member.value}, True
        if kept:
            total.add(weights, source)
            best, values = sign * new_values[monitor], new_values
        members.append(replace(member, kept=kept))
    mean = total.mean()
    if method == UNIFORM or total.count == 1:  # the mean itself was not measured yet, or only its monitored value
        values = measure(mean, "the soup")
    return Soup(method, monitor, members, mean, dict(values))


def write_soup(soup: Soup, first: Checkpoint, direction: str, path: Path) -> None:
    """Writes a soup as a checkpoint; replaces an earlier one.

    Args:
        soup: the averaged weights.
        first: checkpoint whose description the soup gets.
        direction: better direction of the monitored value, "max" or "min".
        path: folder of the new checkpoint.

    Raises:
        OSError: a file could not be written completely.
    """
    members: List[Json] = [
        {
            "path": str(member.checkpoint.path),
            "step": member.checkpoint.step,
            "value": member.value if math.isfinite(member.value) else None,
            "kept": member.kept,
        }
        for member in soup.members
    ]
    value = soup.values[soup.monitor]
    best = {"metric": soup.monitor, "value": value, "step": first.step, "loss": soup.values.get(VAL_LOSS)}
    train = {**first.state["train"], "values": dict(soup.values), "best": best, "validated_step": first.step}
    state: Dict[str, Json] = {
        **with_choices(first.state, soup.choices),
        "train": train,
        "averaged_steps": [member.checkpoint.step for member in soup.members if member.kept],
        "soup": {"method": soup.method, "metric": soup.monitor, "members": members},
    }
    write_folder(
        Snapshot(
            step=first.step,
            epoch=first.epoch,
            arrays={MODEL: soup.weights},
            state=state,
            metric=value,
            direction=direction,
            monitor=soup.monitor,
        ),
        path,
    )
