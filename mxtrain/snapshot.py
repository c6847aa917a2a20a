"""What a checkpoint holds of a run, and how a run is put back from it."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import numpy as np

from mxtrain.backend import nd
from mxtrain.checkpoint import Checkpoint, Snapshot
from mxtrain.errors import CheckpointError, NonFiniteError
from mxtrain.state import TrainState
from mxtrain.step import Step


def copy_parameters(parameters: Mapping[str, Any]) -> Dict[str, np.ndarray]:
    """Structural name -> host copy. Waits for the device."""
    return {name: parameter.data().asnumpy() for name, parameter in parameters.items()}


def require_finite(step: Step, number: int) -> None:
    """One fused look at all trained weights, so that a broken model never becomes a checkpoint.

    Raises:
        NonFiniteError: a weight is infinite or not a number.
    """
    weights = list(step.strategy.weights().values())
    if not weights or float(nd.multi_all_finite(*weights, num_arrays=len(weights)).asscalar()) == 1.0:
        return
    names = [name for name, w in step.strategy.weights().items() if not np.isfinite(w.asnumpy()).all()]
    raise NonFiniteError(f"the weights became non-finite at or before step {number}; the first is '{names[0]}'")


def take(step: Step, state: TrainState, plan: Any, metric: Optional[float]) -> Snapshot:
    """Host copies of all arrays, and the JSON state: everything that continues the run exactly."""
    arrays = {
        "model": copy_parameters(step.strategy.parameters),
        "optimizer": {name: array.asnumpy() for name, array in step.updater.arrays().items()},
    }
    if step.average.arrays:
        arrays["ema"] = {name: array.asnumpy() for name, array in step.average.arrays.items()}
    return Snapshot(
        step=state.step, epoch=state.epoch, arrays=arrays, metric=metric, direction=plan.direction,
        state={"train": state.to_json(), "optimizer": step.updater.numbers(), "run": dict(plan.identity)},
    )  # fmt: skip


def weights_to_use(checkpoint: Checkpoint) -> Mapping[str, np.ndarray]:
    """The weights that were validated: the moving average where one was kept, else the weights themselves."""
    return checkpoint.arrays("ema" if "ema" in checkpoint.stems else "model")


def restore(checkpoint: Checkpoint, step: Step) -> TrainState:
    """Puts a checkpoint's arrays into the run; returns its counters.

    Raises:
        CheckpointError: it is of another network, optimizer or setting.
    """
    set_parameters(step.strategy.parameters, checkpoint.arrays("model"), str(checkpoint.path))
    step.updater.restore(checkpoint.arrays("optimizer"), checkpoint.state["optimizer"])
    if step.average.arrays:
        step.average.restore(checkpoint.arrays("ema"))
    return TrainState.from_json(checkpoint.state["train"])


def set_parameters(parameters: Mapping[str, Any], arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Writes canonical arrays into parameters.

    Raises:
        CheckpointError: names or shapes differ.
    """
    odd = sorted(set(parameters) ^ set(arrays))
    if odd:
        raise CheckpointError(f"{source} is of another network: only one of the two has {', '.join(odd[:5])}")
    for name, parameter in parameters.items():
        if tuple(parameter.shape) != arrays[name].shape:
            raise CheckpointError(
                f"{source}: '{name}' has shape {arrays[name].shape}, the network wants {tuple(parameter.shape)}"
            )
        parameter.set_data(nd.array(arrays[name], dtype=arrays[name].dtype))
