"""Batches and the shapes of samples, and state that training changes.

Legend: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Mapping, Optional, Protocol, Tuple, Union

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Json, JsonObject

Shape = Tuple[int, ...]
Shapes = Union[Shape, Tuple[Shape, ...]]
"""Shapes of one sample, without the batch: of the only input, or of each of several in the network's order."""


def shapes_of(shapes: Shapes) -> Tuple[Shape, ...]:
    """Returns one shape for each input of a network, also if `shapes` is the shape of a single input."""
    sizes = tuple(size for size in shapes if isinstance(size, int))
    if len(sizes) == len(shapes):
        return (sizes,)
    return tuple(tuple(shape) for shape in shapes if not isinstance(shape, int))


DistinctIds = Tuple["np.ndarray", "np.ndarray"]
"""Ids of an input on the host: its K distinct ids (K,), ascending, and the position of each id among them."""


@dataclass(frozen=True)
class Batch:
    """A batch on a device.

    Attributes:
        inputs: inputs of the network in order, (B, ...) each; empty if B is 0.
        targets: targets of loss and metrics, (B, ...) each; empty for predictions.
        size: B, known on the host without waiting for the device.
        global_size: number of samples of the global batch, of which this may be one worker's share; by default B.
    """

    inputs: Tuple[NDArray, ...]
    targets: Tuple[NDArray, ...]
    size: int
    global_size: int = 0
    index_B: Optional[np.ndarray] = None
    """The indices of the samples in their split, on the host; None if unknown."""
    meta: Optional[np.ndarray] = None
    """(B, ...): facts about each sample that stay on the host, such as the size of an image before it was resized to
    the input of the network; None if the dataset keeps no facts. Only its task reads them."""
    continues_previous: bool = False
    """True if each row continues the same row of the previous batch, so that a recurrent network gets the state of that
    row. The batch then has all rows of the previous batch."""
    ids: Optional[Mapping[int, DistinctIds]] = None
    """Distinct ids by number of the input, if they were computed ahead of time. A slice of the batch has none."""
    number: int = 0
    """Index of the global batch in its epoch. Only set for the function of `Task.build_collate`, and for chunks."""
    chunk: int = -1
    """Number of the chunk of the epoch that this batch is, if workers take chunks (`cluster.balance=dynamic`)."""
    rows: Optional[Mapping[int, Any]] = None
    """Rows of embedding tables for these ids by number of the input, if they were requested ahead of time."""

    def __post_init__(self) -> None:
        if not self.global_size:
            object.__setattr__(self, "global_size", self.size)

    def slice(self, begin: int, end: int, global_size: int = 0) -> Batch:
        """Returns the samples from `begin` up to `end`, as views."""
        inputs, targets = (tuple(array[begin:end] for array in arrays) for arrays in (self.inputs, self.targets))
        index_B, meta = (None if array is None else array[begin:end] for array in (self.index_B, self.meta))
        return Batch(inputs, targets, end - begin, global_size, index_B, meta, self.continues_previous)

    def without_inputs(self) -> Batch:
        """Returns the batch without inputs, ids and rows, for results that are read some batches later."""
        return replace(self, inputs=(), ids=None, rows=None)

    def cast(self, dtype: str) -> Batch:
        """Returns the batch with floating-point arrays in another dtype; integer arrays are unchanged."""

        def cast(array: NDArray) -> NDArray:
            return array if array.dtype.__name__.startswith("int") else array.astype(dtype)

        arrays = (tuple(map(cast, self.inputs)), tuple(map(cast, self.targets)))
        return Batch(*arrays, self.size, self.global_size, self.index_B, self.meta, self.continues_previous)


class Stateful(Protocol):
    """State besides parameters that training changes.

    Checkpoints save and restore it without knowing its content. `TrainingStep.states` has all states of a run by name;
    tasks add theirs with `Task.build_states`.
    """

    def save_state(self) -> Tuple[Mapping[str, Union[NDArray, np.ndarray]], Mapping[str, Json]]:
        """Returns arrays by name (NDArray or NumPy, with at least one dimension and one element), and JSON values."""

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """Restores the state that `save_state` returned.

        Args:
            arrays: arrays on the host.
            values: JSON values.
            source: path of the checkpoint, for messages.

        Raises:
            CheckpointError: the state belongs to another network or setting.
        """
