"""Takes snapshots of a run for checkpoints, and restores a run from them.

On CPUs, arrays of 256 MiB or more are read where they are, while training waits until they are hashed and written;
copies would take as long and double the memory of the weights (GPT-2 small: 1.4 GB).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Collection, Dict, Mapping, Optional, Union

import numpy as np

from mxtrain.checkpoint import Checkpoint, Snapshot, canonical_sha256, require_same_arrays
from mxtrain.checkpoint.pieces import PIECE_BYTES, ArrayInPieces, HostArray, forget, write_rows
from mxtrain.engine.array_layout import restore_layout
from mxtrain.engine.backend import (
    all_finite,
    gluon,
    has_asked_for_operators,
    host_view,
    native_operators,
    nd,
    operators_in_use,
)
from mxtrain.errors import CheckpointError, DivergenceError
from mxtrain.model.parameters import distinct_parameters
from mxtrain.parallel.base import Strategy
from mxtrain.training.state import TrainState
from mxtrain.training.step import TrainingStep

if TYPE_CHECKING:
    from mxtrain.training.plan import Plan
    from mxtrain.types.annotations import Json

TOP_LEVEL = ("optimizer", "scaling")
"""States whose values are at the top level of state.json."""

IN_PLACE_FROM_BYTES = 1 << 28
"""Total bytes from which a checkpoint writes arrays in host memory without a copy. The run waits meanwhile, because
writing occupies one of its cores anyway. Smaller checkpoints are copied and written while the run continues."""


def copy_parameters(strategy: Strategy, with_remote: bool = True) -> Dict[str, np.ndarray]:
    """Returns structural name -> host copy of each canonical parameter. Waits for the devices.

    Args:
        strategy: strategy with the parameters.
        with_remote: False to exclude parameters that servers hold.
    """
    left_out = () if with_remote else strategy.remote.names
    return {name: array.asnumpy() for name, array in strategy.values.items() if name not in left_out}


def held_parameters(strategy: Strategy) -> Dict[str, HostArray]:
    """Returns the parameters like `copy_parameters`, but avoids copies.

    Arrays in host memory are not copied, so they must not change until they are written. Tables with row-sparse
    gradients are copied in pieces, on any device.
    """
    return {name: _array_to_save(array, name in strategy.rows, True) for name, array in strategy.values.items()}


def _array_to_save(array: Union[np.ndarray, nd.NDArray], in_pieces: bool, in_place: bool) -> HostArray:
    """Returns an array in the form in which a checkpoint writes it.

    Args:
        array: parameter or state.
        in_pieces: True to copy a few rows at a time while they are written.
        in_place: True to use arrays in host memory without a copy.
    """
    if isinstance(array, np.ndarray):
        return array
    # Arrays on a GPU are copied to the host, which has nothing else to do.
    if in_place and _is_on_host(array):
        return ArrayInPieces(array.shape, np.dtype(array.dtype), lambda begin, end: host_view(array)[begin:end])
    if in_pieces:
        return ArrayInPieces(array.shape, np.dtype(array.dtype), lambda begin, end: array[begin:end].asnumpy())
    return array.asnumpy()


def _is_large(array: nd.NDArray, source: np.ndarray) -> bool:
    """Returns True for an array in host memory that is large enough to be filled in pieces.

    A second array beside the embedding of GPT-2, and the mapped file, took 154 MiB each at the peak of an evaluation.
    """
    return _is_on_host(array) and source.nbytes >= 2 * PIECE_BYTES and np.dtype(array.dtype) == source.dtype


def _is_on_host(array: object) -> bool:
    """Returns True if an array is an MXNet array in host memory, i.e. not on a GPU or on servers."""
    return isinstance(array, nd.NDArray) and array.context.device_type != "gpu"


def copy_gradients(strategy: Strategy) -> Dict[str, np.ndarray]:
    """Returns structural name -> gradient that updated the parameter, for all rows of a table. Waits."""
    gradients = {one.name: one.replicas[one.owner].asnumpy() for one in strategy.reductions}
    dense = {name: rows.dense(gradients[name]) for name, rows in strategy.rows.items() if name in gradients}
    return {**gradients, **dense, **strategy.remote.summed_gradients()}


def first_nonfinite_parameter(step: TrainingStep) -> str:
    """Returns the name of the first parameter or moving average with infinite or NaN values; "" if all are finite.

    A fused operator checks all arrays at once; single arrays are only read if it finds something. Moving statistics are
    checked, too; constants (such as an attention mask of -inf) are not.
    """
    remote, parameters = step.strategy.remote, distinct_parameters(step.strategy.objective.network)
    # These may contain infinities on purpose, e.g. an attention mask.
    constants = {name for name, one in parameters.items() if isinstance(one, gluon.parameter.Constant)}
    values = {n: array for n, array in step.strategy.values.items() if n not in constants and n not in remote.names}
    values.update({f"{name} (moving average)": array for name, array in step.average.arrays.items()})
    if all_finite(list(values.values())):
        return remote.first_nonfinite()
    return next((name for name, array in values.items() if not np.isfinite(array.asnumpy()).all()), "")


def require_same_weights(step: TrainingStep, number: int) -> None:
    """Compares the weights of all replicas bit by bit, and those of all workers by their hash. Collective.

    Raises:
        DivergenceError: the weights differ after step `number`.
    """
    world = step.store.world
    copies = list(step.strategy.other_copies())
    if world.size == 1 and not copies:
        return
    remote = step.strategy.remote.names  # servers hold a single copy of these
    parameters = {name: array for name, array in held_parameters(step.strategy).items() if name not in remote}
    # Bytes are compared instead of values, because NaN differs from itself and -0.0 equals 0.0.
    for name, copy in copies:
        if step.strategy.values[name].asnumpy().tobytes() != copy.asnumpy().tobytes():
            raise DivergenceError(f"after step {number} the copies of '{name}' differ, seen on {copy.context}")
    if world.size == 1:
        return
    digest = np.frombuffer(bytes.fromhex(canonical_sha256(parameters)), np.uint8).astype(np.float64)
    # The sums of the bytes and of their squares are those of equal hashes only if all hashes are equal (zero variance).
    # Stores may sum in float32, which represents these sums of small integers exactly.
    own = np.concatenate([[1.0], digest, digest**2])
    total = step.store.total(own)
    if (total != total[0] * own).any():  # total[0] workers: all that are left
        raise DivergenceError(f"after step {number} the workers' weights differ, seen by worker {world.rank}")


def require_same_operators(step: TrainingStep) -> None:
    """Checks that either all workers or none use mxtrain's native operators, which round differently. Collective.

    Raises:
        DivergenceError: only some workers use them.
    """
    world = step.store.world
    if world.size == 1 or not has_asked_for_operators():
        return  # all workers train the same network with the same optimizer, so no worker needs the operators
    library = native_operators()
    num_with_operators = int(step.store.total([float(library.path is not None)])[0])
    if 0 < num_with_operators < world.size:
        raise DivergenceError(
            f"{num_with_operators} of {world.size} workers compute with mxtrain's native operators, the others cannot"
            + (f" (worker {world.rank}: {library.why})" if library.why else "")
            + ". Install a C++ compiler on all hosts, or type runtime.operators=false."
        )


def take(
    step: TrainingStep, state: TrainState, plan: Plan, metric: Optional[float], with_residuals: bool = True
) -> Snapshot:
    """Takes a snapshot: all arrays on the host and the JSON state that are needed to continue the run exactly.

    Some arrays are not copied and must not change before they are written: tables with row-sparse gradients and their
    optimizer state, and all arrays in host memory if they have at least `IN_PLACE_FROM_BYTES` together.

    Args:
        step: training step.
        state: counters of the run.
        plan: plan of the run.
        metric: value of the monitored metric; None if this step was not validated.
        with_residuals: True to include the residuals of gradient compression. The call is then collective.
    """
    arrays_of: Dict[str, Mapping[str, Union[np.ndarray, nd.NDArray]]] = {"model": step.strategy.values}
    values: Dict[str, Mapping[str, Json]] = {}
    for name, stateful in step.states.items():
        state_arrays, values[name] = stateful.save_state()
        if state_arrays:
            arrays_of[name] = state_arrays
    on_host = [array for named_arrays in arrays_of.values() for array in named_arrays.values() if _is_on_host(array)]
    in_place = sum(array.size * np.dtype(array.dtype).itemsize for array in on_host) >= IN_PLACE_FROM_BYTES
    tables = step.strategy.rows
    # Optimizer state is named <parameter>:<position>; the state of a table is handled like the table.
    arrays: Dict[str, Mapping[str, HostArray]] = {
        stem: {
            name: _array_to_save(array, name.partition(":")[0] in tables, in_place)
            for name, array in named_arrays.items()
        }
        for stem, named_arrays in arrays_of.items()
    }
    residuals = step.store.residuals(step.strategy.reductions) if with_residuals else {}
    if residuals:
        arrays["residual"] = residuals
    run = {
        **plan.identity,
        "threads": threads(),
        "own_operators": operators_in_use(),
        "workers": step.store.world.size,
        "updates": step.store.servers_update,
    }
    return Snapshot(
        step=state.step,
        epoch=state.epoch,
        arrays=arrays,
        metric=metric,
        direction=plan.direction,
        monitor=plan.monitor,
        state={"train": state.to_json(), "run": run, **{n: values.pop(n) for n in TOP_LEVEL}, "states": values},
    )


def threads() -> str:
    """Returns OMP_NUM_THREADS. The number of threads changes the last bits of results, so checkpoints record it."""
    return os.environ.get("OMP_NUM_THREADS", "")


def restore(checkpoint: Checkpoint, step: TrainingStep) -> TrainState:
    """Restores a run from a checkpoint; returns the counters.

    Raises:
        CheckpointError: the checkpoint belongs to another network, optimizer or setting.
    """
    # Rank 0 alone writes tables to the servers; the checkpoint is sent to the other workers without them.
    without = step.strategy.remote.names if step.store.world.rank else ()
    set_parameters(step.strategy, checkpoint.arrays("model"), str(checkpoint.path), without)
    other_states = checkpoint.state.get("states") or {}
    for name, stateful in step.states.items():
        # A checkpoint without "states", as `slim` writes it, is accepted; one that lacks a single state is not.
        if name not in TOP_LEVEL and "states" in checkpoint.state and name not in other_states:
            raise CheckpointError(f"{checkpoint.path} holds no state '{name}', which this run has.")
        values = checkpoint.state.get(name) if name in TOP_LEVEL else other_states.get(name)
        arrays = checkpoint.arrays(name) if name in checkpoint.stems else {}
        stateful.load_state(arrays, values or {}, str(checkpoint.path))
    if "residual" in checkpoint.stems:
        step.store.restore_residuals(step.strategy.reductions, checkpoint.arrays("residual"))
    return TrainState.from_json(checkpoint.state["train"])


def set_parameters(
    strategy: Strategy, arrays: Mapping[str, np.ndarray], source: str, left_out: Collection[str] = ()
) -> None:
    """Writes canonical arrays into the parameters, on all devices.

    Args:
        strategy: strategy with the parameters.
        arrays: structural name -> array.
        source: origin of the arrays, for messages.
        left_out: structural names of parameters that are not written.

    Raises:
        CheckpointError: names or shapes differ.
    """
    values = {name: array for name, array in strategy.values.items() if name not in left_out}
    arrays = {name: array for name, array in arrays.items() if name not in left_out}
    require_same_arrays(values, arrays, f"{source} is of another network, it")
    large = [name for name, value in values.items() if _is_large(value, arrays[name])]
    if large:
        nd.waitall()  # `restore_layout` needs that: see there
        restore_layout(values[name] for name in large)
    for name, value in values.items():
        if name in strategy.rows or name in large:
            write_rows(arrays[name], value)
            continue
        # Not `value[:] = ...`: after inference oneDNN may hold the array in a private layout, for which MXNet rejects
        # copies from the host.
        nd.array(arrays[name], ctx=value.context, dtype=arrays[name].dtype).copyto(value)
        forget(arrays[name])  # releases the pages of the mapped file
    strategy.publish()
