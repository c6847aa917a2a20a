"""Sums gradients over several batches before an update. Imports MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.engine.backend import nd

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Json, JsonObject


class GradientSum:
    """Sums the gradients of sum(loss), and the weights of the samples, over the batches since the last update.

    Args:
        names: structural names of the parameters, in the order of the gradients.
    """

    def __init__(self, names: Sequence[str]):
        self._names = list(names)
        self._sums: List[nd.NDArray] = []
        self._weight: Optional[nd.NDArray] = None
        self._size = 0
        self.is_open = False
        """True if the gradients of the next batch are only added, without an update after it."""

    @property
    def is_in_use(self) -> bool:
        """Returns True if the next update needs the sum: it averages several batches."""
        return self.is_open or self._size > 0

    def add(self, gradients: Sequence[nd.NDArray], weight: Optional[nd.NDArray], size: int) -> None:
        """Adds a batch. Asynchronous.

        Args:
            gradients: gradients of sum(loss) / size.
            weight: sum of the sample weights, (1,); None if each sample has weight 1.
            size: number of samples of the batch, over all workers.
        """
        # Batches may differ in size, so means are turned into sums before they are added.
        scaled = [gradient * size for gradient in gradients]
        if self._size == 0:
            self._sums, self._weight = scaled, weight
        else:
            # Sums restored from a checkpoint are on the CPU at first.
            self._sums = [total.as_in_context(term.context) + term for total, term in zip(self._sums, scaled)]
            if weight is not None and self._weight is not None:
                self._weight = self._weight.as_in_context(weight.context) + weight
        self._size += size

    def close(self, gradients: Sequence[nd.NDArray]) -> Tuple[Optional[nd.NDArray], int]:
        """Overwrites `gradients` with those of sum(loss) / samples over all added batches, and starts a new sum.

        Returns:
            The weight of all samples, (1,), or None; and the number of samples.
        """
        for gradient, total in zip(gradients, self._sums):
            # The result goes into the gradients' own arrays, to which stores and optimizers are bound.
            nd._internal._mul_scalar(total, scalar=1.0 / max(self._size, 1), out=gradient)
        weight, size = self._weight, self._size
        self._sums, self._weight, self._size = [], None, 0
        return weight, size

    def save_state(self) -> Tuple[Mapping[str, nd.NDArray], Mapping[str, Json]]:
        """See `Stateful`."""
        arrays: Dict[str, nd.NDArray] = dict(zip(self._names, self._sums))
        if self._weight is not None:
            arrays[":weight"] = self._weight.reshape((1,))
        return arrays, {"size": self._size}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        self._size = int(values.get("size", 0))
        self._sums = [nd.array(arrays[name], dtype=arrays[name].dtype) for name in self._names] if self._size else []
        self._weight = nd.array(arrays[":weight"]) if ":weight" in arrays else None
