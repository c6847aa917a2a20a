"""Takes snapshots of a run for checkpoints, and restores a run from them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Collection, Dict, Mapping, Optional, Union

import numpy as np

from mxtrain.checkpoint import Checkpoint, Snapshot, canonical_sha256, require_same_arrays
from mxtrain.checkpoint.pieces import ArrayInPieces, HostArray, forget, write_rows
from mxtrain.engine.backend import all_finite, has_asked_for_operators, host_view, nd, operators_in_use, own_operators
from mxtrain.errors import CheckpointError, DivergenceError
from mxtrain.parallel.base import Strategy
from mxtrain.training.state import TrainState
from mxtrain.training.step import TrainingStep

if TYPE_CHECKING:
    from mxtrain.annotations import Json
    from mxtrain.training.plan import Plan

TOP = ("optimizer", "scaling")
"""States whose values are at the top level of state.json."""


IN_PLACE_FROM_BYTES = 1 << 28
"""Bytes of all arrays from which on a checkpoint does not copy arrays in host memory before it writes them: the run
waits until they have been read, since writing takes one of its cores anyway. Smaller ones are copied, and written
while the run continues."""


def copy_parameters(strategy: Strategy, with_remote: bool = True) -> Dict[str, np.ndarray]:
    """Structural name -> host copy of the canonical parameters, perhaps without those on servers. Waits for the
    devices."""
    left_out = () if with_remote else strategy.remote.names
    return {name: array.asnumpy() for name, array in strategy.values.items() if name not in left_out}


def held_parameters(strategy: Strategy) -> Dict[str, HostArray]:
    """Returns the same without copies of arrays in host memory, which must not change until they are written, and
    without copies of tables with row-sparse gradients on any device."""
    return {name: _held(array, name in strategy.rows, True) for name, array in strategy.values.items()}


def _held(array: Union[np.ndarray, nd.NDArray], in_pieces: bool, in_place: bool) -> HostArray:
    """Returns the part of an array that a checkpoint stores.

    Args:
        in_pieces: a few rows are copied at a time, whatever the device.
        in_place: where the host computes, no copy is made at all.
    """
    if isinstance(array, np.ndarray):
        return array
    if in_place and _is_here(array):
        return ArrayInPieces(array.shape, np.dtype(array.dtype), lambda begin, end: host_view(array)[begin:end])
    if in_pieces:
        return ArrayInPieces(array.shape, np.dtype(array.dtype), lambda begin, end: array[begin:end].asnumpy())
    return array.asnumpy()


def _is_here(array: object) -> bool:
    """Returns True if an array of MXNet's is in the host's memory, and not on a GPU or on servers."""
    return isinstance(array, nd.NDArray) and array.context.device_type != "gpu"


def first_nonfinite_parameter(step: TrainingStep) -> str:
    """The name of the first parameter or average that is infinite or not a number, or an empty string.

    One fused look for all. Statistics count as parameters; constants (an attention mask of -inf) don't.
    """
    constants, remote = step.strategy.constants, step.strategy.remote
    values = {n: array for n, array in step.strategy.values.items() if n not in constants and n not in remote.names}
    values.update({f"{name} (moving average)": array for name, array in step.average.arrays.items()})
    if all_finite(list(values.values())):
        return remote.first_nonfinite()
    return next((name for name, array in values.items() if not np.isfinite(array.asnumpy()).all()), "")


def require_same_weights(step: TrainingStep, number: int) -> None:
    """Compares the weights of all replicas bit by bit, and of all workers by their hash. Waits for all of them.

    Raises:
        DivergenceError: they differ, after step `number`.
    """
    world = step.store.world
    copies = list(step.strategy.other_copies())
    if world.size == 1 and not copies:
        return
    remote = step.strategy.remote.names  # of which there is one copy
    parameters = {name: array for name, array in held_parameters(step.strategy).items() if name not in remote}
    for name, copy in copies:
        if step.strategy.values[name].asnumpy().tobytes() != copy.asnumpy().tobytes():
            raise DivergenceError(f"after step {number} the copies of '{name}' differ, seen on {copy.context}")
    if world.size == 1:
        return
    own = np.frombuffer(bytes.fromhex(canonical_sha256(parameters)), np.uint8).astype(np.float64)
    # Sums of numbers and of their squares as if all had one's own: then all have. Float32 holds sums of bytes exactly.
    expected = world.size * np.concatenate([own, own**2])
    if (step.store.total(np.concatenate([own, own**2])) != expected).any():
        raise DivergenceError(f"after step {number} the workers' weights differ, seen by worker {world.rank}")


def require_same_operators(step: TrainingStep) -> None:
    """Compares whether the workers compute with our own operators, whose last bits are not MXNet's. Waits for all.

    Raises:
        DivergenceError: only some of them do.
    """
    world = step.store.world
    if world.size == 1 or not has_asked_for_operators():
        return  # all workers train the same network with the same optimizer: none has asked for them
    found = own_operators()
    having = int(step.store.total([float(found.path is not None)])[0])
    if 0 < having < world.size:
        raise DivergenceError(
            f"{having} of {world.size} workers compute with mxtrain's own operators, the others cannot"
            + (f" (worker {world.rank}: {found.why})" if found.why else "")
            + ". Install a C++ compiler on all hosts, or type runtime.operators=false."
        )


def take(
    step: TrainingStep, state: TrainState, plan: Plan, metric: Optional[float], with_residuals: bool = True
) -> Snapshot:
    """Host copies of all arrays, and the JSON state: everything that continues the run exactly. Tables whose gradients
    hold some rows only, and their state, are not copied, and where a host computes with many numbers nothing is:
    those arrays must not change before they have been read.

    Args:
        with_residuals: gather what gradient compression has left over; then all workers must call this.
    """
    given: Dict[str, Mapping[str, Union[np.ndarray, nd.NDArray]]] = {"model": step.strategy.values}
    values: Dict[str, Mapping[str, Json]] = {}
    for name, stateful in step.states.items():
        own, values[name] = stateful.save_state()
        if own:
            given[name] = own
    here = [array for named in given.values() for array in named.values() if _is_here(array)]
    in_place = sum(array.size * np.dtype(array.dtype).itemsize for array in here) >= IN_PLACE_FROM_BYTES
    tables = step.strategy.rows
    # The arrays of an optimizer's state are named <parameter>:<position>.
    arrays: Dict[str, Mapping[str, HostArray]] = {
        stem: {name: _held(array, name.partition(":")[0] in tables, in_place) for name, array in named.items()}
        for stem, named in given.items()
    }
    residuals = step.store.residuals(step.strategy.reductions) if with_residuals else {}
    if residuals:
        arrays["residual"] = residuals
    run = {**plan.identity, "threads": threads(), "own_operators": operators_in_use(),
           "workers": step.store.world.size, "updates": step.store.updates}  # fmt: skip
    return Snapshot(
        step=state.step, epoch=state.epoch, arrays=arrays, metric=metric, direction=plan.direction,
        monitor=plan.monitor,
        state={"train": state.to_json(), "run": run, **{name: values.pop(name) for name in TOP}, "states": values},
    )  # fmt: skip


def threads() -> str:
    """OpenMP threads, on whose number the last bits of a result depend."""
    return os.environ.get("OMP_NUM_THREADS", "")


def weights_to_use(checkpoint: Checkpoint) -> Mapping[str, np.ndarray]:
    """The weights that were validated: the moving average where one was kept, else the weights themselves."""
    return checkpoint.arrays("ema" if "ema" in checkpoint.stems else "model")


def restore(checkpoint: Checkpoint, step: TrainingStep) -> TrainState:
    """Puts a checkpoint's arrays into the run; returns its counters.

    Raises:
        CheckpointError: it is of another network, optimizer or setting.
    """
    written_by_others = step.strategy.remote.names if step.store.world.rank else ()
    set_parameters(step.strategy, checkpoint.arrays("model"), str(checkpoint.path), written_by_others)
    others = checkpoint.state.get("states") or {}
    for name, stateful in step.states.items():
        if name not in TOP and "states" in checkpoint.state and name not in others:
            raise CheckpointError(f"{checkpoint.path} holds no state '{name}', which this run has.")
        values = checkpoint.state.get(name) if name in TOP else others.get(name)
        arrays = checkpoint.arrays(name) if name in checkpoint.stems else {}
        stateful.load_state(arrays, values or {}, str(checkpoint.path))
    if "residual" in checkpoint.stems:
        step.store.restore_residuals(step.strategy.reductions, checkpoint.arrays("residual"))
    return TrainState.from_json(checkpoint.state["train"])


def set_parameters(
    strategy: Strategy, arrays: Mapping[str, np.ndarray], source: str, left_out: Collection[str] = ()
) -> None:  # fmt: skip
    """Writes canonical arrays into the parameters, on all devices.

    Args:
        strategy: has the parameters.
        arrays: by structural name.
        source: of the arrays, for messages.
        left_out: structural names of parameters that are not written.

    Raises:
        CheckpointError: names or shapes differ.
    """
    values = {name: array for name, array in strategy.values.items() if name not in left_out}
    arrays = {name: array for name, array in arrays.items() if name not in left_out}
    require_same_arrays(values, arrays, f"{source} is of another network, it")
    for name, value in values.items():
        if name in strategy.rows:
            write_rows(arrays[name], value)
            continue
        # Not `value[:] = ...`: after inference oneDNN may hold it in a layout of its own, which host copies refuse.
        nd.array(arrays[name], ctx=value.context, dtype=arrays[name].dtype).copyto(value)
        forget(arrays[name])
    strategy.publish()
