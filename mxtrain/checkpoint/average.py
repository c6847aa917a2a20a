"""Averages the weights of a run's last checkpoints into a new checkpoint.

The average is a checkpoint, not a setting of `eval`, so that fine-tuning, `predict` and export take it. Only the most
recent checkpoints are averaged: older ones are kept because they were the best, so averaging them would select weights
by the validation split.

Source: Vaswani et al., https://arxiv.org/abs/1706.03762, section 6.1: the last 5 (base) or 20 (big) of a run.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Sequence

from mxtrain.checkpoint.contents import Checkpoint, Snapshot, write_contents
from mxtrain.checkpoint.folder import AVERAGED, CHECKPOINTS, TEMPORARY, discard, read_named, scan
from mxtrain.checkpoint.run_state import require_run_state, require_same_arrays
from mxtrain.errors import CheckpointError, ConfigError, run_dir_setting
from mxtrain.files.durable import fsync_directory

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import JsonObject

Choose = Callable[[Mapping[str, "np.ndarray"]], Mapping[str, "JsonObject"]]
"""Function that validates weights and returns the values that are chosen, such as thresholds, by name of state."""
MODEL, EMA = "model", "ema"
SLIM = "slimmed_step"
"""Key in the state of a checkpoint of `mxtrain slim`: step of the checkpoint that it was made from."""


def last_checkpoints(run_dir: Path, count: int) -> List[Checkpoint]:
    """Returns the `count` newest checkpoints of a run, one per step, oldest first, with every byte verified.

    Args:
        run_dir: the run directory.
        count: number of checkpoints.

    Raises:
        CheckpointError: one of them cannot be used. It is not skipped, because that would silently change the mean.
        ConfigError: the run has kept fewer successive checkpoints.
    """
    newest = {folder.step: folder.path for folder in scan(run_dir / CHECKPOINTS)}  # of each step the newest copy
    if not newest:
        raise CheckpointError(f"{run_dir} holds no checkpoints. Give a run directory.")
    last = read_named(newest[max(newest)])
    require_run_state(last)
    # Older checkpoints are kept only because one of them was the best.
    keep = last.state["run"]["description"].get("checkpoint")
    keep_last = keep.get("keep_last") if isinstance(keep, dict) else None
    if not isinstance(keep_last, int):
        raise CheckpointError(f"{last.path} does not say how many checkpoints its run keeps (checkpoint.keep_last).")
    num_successive = min(keep_last, len(newest))
    if count > num_successive:
        raise ConfigError(
            f"last={count}: {run_dir} has {num_successive} successive checkpoint{'s' * (num_successive != 1)}; it "
            f"keeps the last {keep_last}. Type last={num_successive}, or train with checkpoint.keep_last={count}."
        )
    checkpoints = [*(read_named(newest[step]) for step in sorted(newest)[-count:-1]), last]
    for checkpoint in checkpoints:
        require_run_state(checkpoint)
    return checkpoints


class WeightMean:
    """The mean of the weights of several checkpoints, by structural name. Sums in float64, in the order of the calls;
    only one checkpoint is in memory at a time."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: Dict[str, np.ndarray] = {}
        self._dtypes: Dict[str, np.dtype] = {}

    def add(self, weights: Mapping[str, np.ndarray], source: str) -> None:
        """Adds the weights of one checkpoint.

        Args:
            weights: weights of the checkpoint.
            source: path of the checkpoint, for messages.

        Raises:
            CheckpointError: it belongs to another network than the ones before.
        """
        import numpy as np

        if not self.count:
            # float64: in float32 the sum would be rounded once more with each member.
            self._sums = {name: array.astype(np.float64) for name, array in weights.items()}
            self._dtypes = {name: array.dtype for name, array in weights.items()}
        else:
            require_same_arrays(self._sums, weights, f"{source} is of another network, it")
            for name, array in weights.items():
                self._sums[name] += array
        self.count += 1

    def mean(self) -> Dict[str, np.ndarray]:
        """Returns the mean, each array in the dtype of the first checkpoint."""
        return {name: (total / self.count).astype(self._dtypes[name]) for name, total in self._sums.items()}

    def mean_with(self, weights: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
        """Returns the mean as if these weights were added, too."""
        return {
            name: ((total + weights[name]) / (self.count + 1)).astype(self._dtypes[name])
            for name, total in self._sums.items()
        }


def weights_to_use(checkpoint: Checkpoint) -> Dict[str, np.ndarray]:
    """Returns the weights that validation used: the moving average if there is one, otherwise the weights."""
    return checkpoint.arrays(EMA if EMA in checkpoint.stems else MODEL)


def mean_weights(checkpoints: Sequence[Checkpoint]) -> Dict[str, np.ndarray]:
    """Returns the mean of the weights by structural name: of the EMA weights if the run keeps them, else of the model.

    Raises:
        CheckpointError: the checkpoints belong to different networks, or one of them is damaged.
    """
    stems = {EMA if EMA in checkpoint.stems else MODEL for checkpoint in checkpoints}
    if len(stems) > 1:
        raise CheckpointError("Only some of the checkpoints hold a moving average: they are not of one run.")
    total = WeightMean()
    for checkpoint in checkpoints:
        total.add(weights_to_use(checkpoint), str(checkpoint.path))
    return total.mean()


def write_average(run_dir: Path, checkpoints: Sequence[Checkpoint], choose: Choose = lambda weights: {}) -> Path:
    """Writes the mean of checkpoints to `averaged/last-N` of a run directory; replaces an earlier one.

    Its state is that of the last checkpoint without `states` (of actions, recurrent networks and others), whose arrays
    an average does not have. It has no metric, because it was not validated.

    Args:
        run_dir: the run directory.
        checkpoints: checkpoints of the run, oldest first.
        choose: chooses thresholds and the like for the mean.

    Raises:
        CheckpointError: see `mean_weights`.
        OSError: a file could not be written completely.
    """
    last, folder = checkpoints[-1], run_dir / AVERAGED
    weights = mean_weights(checkpoints)
    state = {
        **with_choices(last.state, choose(weights)),
        "averaged_steps": [checkpoint.step for checkpoint in checkpoints],
    }
    snapshot = Snapshot(
        step=last.step,
        epoch=last.epoch,
        arrays={MODEL: weights},
        state=state,
        direction=last.direction,
        monitor=last.monitor,
    )
    path = folder / f"last-{len(checkpoints)}"
    write_folder(snapshot, path)
    return path


def with_choices(state: JsonObject, choices: Mapping[str, JsonObject]) -> JsonObject:
    """Returns the state of a checkpoint with `states` replaced by values that a validation has chosen."""
    rest = {name: value for name, value in state.items() if name != "states"}
    return {**rest, "states": dict(choices)} if choices else rest


def write_folder(snapshot: Snapshot, path: Path) -> None:
    """Writes a checkpoint that cannot be resumed to a folder; replaces an earlier one.

    Raises:
        OSError: a file could not be written completely.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{TEMPORARY}{path.name}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        write_contents(snapshot, temporary)
        # A rename cannot replace a directory that holds files, so the old one is removed first.
        if path.exists():
            discard(path)
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    fsync_directory(folder)


def refuse_average(checkpoint: Checkpoint) -> None:
    """Rejects resuming from an average or a slim network, which has no optimizer state.

    Raises:
        CheckpointError: the checkpoint is one of these; the message says what to type instead.
    """
    if SLIM in checkpoint.state:
        raise CheckpointError(
            f"{checkpoint.path} was written by `mxtrain slim`, and no run goes on from it. To train from its weights "
            f"type the settings that it printed and model.weights={checkpoint.path / MODEL}.params, with another "
            f"{run_dir_setting()}."
        )
    if "averaged_steps" in checkpoint.state:
        raise CheckpointError(
            f"{checkpoint.path} is the average of several checkpoints, from which no run goes on. To train from its "
            f"weights type model.weights={checkpoint.path / MODEL}.params, without checkpoint.resume."
        )
