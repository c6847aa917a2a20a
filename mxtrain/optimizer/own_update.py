"""What optimizers share that an operator of our own computes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Sequence

from mxtrain.engine.backend import nd, own_operators


class OwnUpdate:
    """Mixed into MXNet's optimizers.

    Attributes:
        factor: what gradients are multiplied by first, (1,), within `multiplying`; False where that cannot be.
    """

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.aggregate_num = 1  # above 0: several arrays at a time
        self._has_own = own_operators().path is not None
        self.factor: Any = None if self._has_own else False

    @contextmanager
    def multiplying(self, factor: nd.NDArray) -> Iterator[None]:
        """Updates within it multiply gradients by that number first."""
        self.factor = factor
        try:
            yield
        finally:
            self.factor = None

    def _own(
        self, operator: Any, arrays: Sequence[Sequence[nd.NDArray]], names: Sequence[str],
        further: Sequence[nd.NDArray] = (), **options: Any,
    ) -> None:  # fmt: skip
        """One update of several parameters.

        Args:
            operator: takes and writes the arrays of all, one parameter after the other.
            arrays: (weight, gradient, *state) of each.
            names: attributes of the optimizer that the operator takes, where they are not None.
            further: arrays that it takes last.
            options: further attributes.
        """
        given: List[nd.NDArray] = [array for one in arrays for array in one]
        first = given[0]
        if self.factor is not None:
            given.append(self.factor.as_in_context(first.context).astype(first.dtype, copy=False))
            options["scaled"] = 1
        given += further
        for name in (*names, "rescale_grad", "clip_gradient"):
            if getattr(self, name) is not None:
                options[name] = getattr(self, name)
        # A convolution's weight may lie in oneDNN's layout, after inference, where operators of a library cannot write.
        made = [nd.empty(w.shape, w.context, w.dtype) if w.ndim > 2 else w for w, *_ in arrays]
        out = [array for w, (_, _, *state) in zip(made, arrays) for array in (w, *state)]
        operator(*given, out=out, size=len(arrays), **options)
        for one, (other, *_) in zip(made, arrays):
            if one is not other:
                one.copyto(other)
