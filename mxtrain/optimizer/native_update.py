"""Base class of optimizers that use one of mxtrain's native update operators (`mxtrain/engine/native`)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from mxtrain.engine.backend import native_operators, nd
from mxtrain.engine.bound_call import BoundCall, are_same
from mxtrain.optimizer.rows import TouchedRows
from mxtrain.optimizer.state import OptimizerState

MAX_KEPT_ELEMENTS = 1 << 16
"""Maximum size of the temporary copies that a bound call keeps between steps; larger copies are made in each step."""


class NativeUpdate:
    """Mixin of MXNet optimizers.

    Attributes:
        has_native: True if the native operators are available; otherwise updates use MXNet's, which know no factor.
        factor: number (1,) by which gradients are multiplied first, inside `multiplying`; otherwise None.
    """

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.aggregate_num = 1  # any value above 0 makes MXNet's updater pass lists of arrays
        self.has_native = native_operators().path is not None
        self.factor: Optional[nd.NDArray] = None
        self._bound: Dict[Tuple[int, bool], _Update] = {}
        self._binds = True
        self._rows: Optional[TouchedRows] = None
        self._lazy = False

    @contextmanager
    def multiplying(self, factor: nd.NDArray) -> Iterator[None]:
        """Makes updates multiply gradients by `factor`, (1,), first, within the context."""
        self.factor = factor
        try:
            yield
        finally:
            self.factor = None

    @contextmanager
    def unbound(self) -> Iterator[None]:
        """Disables the cache of updates within the context, because their arrays are temporary."""
        self._binds = False
        try:
            yield
        finally:
            self._binds = True

    def update_rows(
        self,
        index: int,
        table_RU: nd.NDArray,
        gradient_CU: nd.NDArray,
        state: OptimizerState,
        rows: TouchedRows,
        lazy: bool,
    ) -> bool:
        """Updates a table by the gradients of some rows in one pass, without a copy of the rows.

        Args:
            index: index of the table.
            table_RU: all rows.
            gradient_CU: gradients of `rows`; further rows are ignored.
            state: optimizer state of the table.
            rows: rows that the gradient covers.
            lazy: if True, other rows do not change, see `mxtrain.optimizer.rows`.

        Returns:
            False if the native operator is not available or there is no row; the caller must then update with MXNet's.
        """
        if not self.has_native or not len(rows):
            return False
        self._rows, self._lazy = rows, lazy
        try:
            self.update(index, table_RU, gradient_CU[: len(rows)], state)  # type: ignore[attr-defined]  # the optimizer's
        finally:
            self._rows = None
        return True

    def _update_native(
        self, name: str, arrays: Sequence[Sequence[nd.NDArray]], options_from: Sequence[str], **options: Any
    ) -> None:
        """Updates several parameters, or within `update_rows` some rows of a table.

        Args:
            name: name of the operator, whose inputs are the arrays of one parameter after the other.
            arrays: (weight, gradient, *state) of each parameter.
            options_from: attributes of the optimizer to pass to the operator, unless they are None.
            options: further operator arguments.
        """
        row_inputs: List[nd.NDArray] = []
        if self._rows is not None:
            row_inputs.append(self._rows.number_K)
            options.update(count=len(self._rows), rows="lazy" if self._lazy else "exact")
        inputs: List[nd.NDArray] = [array for arrays_of_parameter in arrays for array in arrays_of_parameter]
        for option in (*options_from, "rescale_grad", "clip_gradient"):
            if getattr(self, option) is not None:
                options[option] = getattr(self, option)
        # The key contains only the first array, so `is_bound_to` compares all of them.
        key = (id(inputs[0]), self.factor is not None)
        update = self._bound.get(key)
        if row_inputs or update is None or not update.is_bound_to(inputs):
            update = _Update(name, arrays, self.factor, row_inputs)
            if update.is_cacheable and self._binds and not row_inputs:
                self._bound[key] = update
        # Hyper-parameters are usually equal for all parameters; one number is formatted and parsed faster than dozens.
        compact_options = {key: value[:1] if _are_alike(value) else value for key, value in options.items()}
        update(self.factor, size=len(arrays), **compact_options)


def _are_alike(values: Any) -> bool:
    """Returns True if `values` is a list of equal numbers."""
    return isinstance(values, list) and values.count(values[0]) == len(values)


class _Update:
    """Call of an update operator, bound to the arrays of its parameters.

    Args:
        name: name of the operator.
        arrays: (weight, gradient, *state) of each parameter.
        factor: number (1,) by which gradients are multiplied first, or None.
        row_inputs: ids of the rows to update, (K,), as the last input; empty to update all rows.

    Attributes:
        is_cacheable: True if the call may be kept for the next step, because its temporary copies are small.
    """

    def __init__(
        self,
        name: str,
        arrays: Sequence[Sequence[nd.NDArray]],
        factor: Optional[nd.NDArray],
        row_inputs: Sequence[nd.NDArray],
    ):
        self._inputs = [array for parameter_arrays in arrays for array in parameter_arrays]
        # After inference a convolution's weight may be in oneDNN's private layout, which a library's operators cannot
        # write, so arrays of more than two axes are updated through a copy.
        weights = [weight for weight, *_ in arrays]
        targets = [nd.empty(w.shape, w.context, w.dtype) if w.ndim > 2 else w for w in weights]
        self._copies = [(copy, weight) for copy, weight in zip(targets, weights) if copy is not weight]
        self.is_cacheable = sum(copy.size for copy, _ in self._copies) <= MAX_KEPT_ELEMENTS
        out = [array for w, (_, _, *state) in zip(targets, arrays) for array in (w, *state)]
        self._call = BoundCall(name, [*self._inputs, *([] if factor is None else [factor]), *row_inputs], out)

    def is_bound_to(self, arrays: Sequence[nd.NDArray]) -> bool:
        """Returns True if the call is bound to exactly these arrays, in the order of `arrays`."""
        return are_same(arrays, self._inputs)

    def __call__(self, factor: Optional[nd.NDArray], **options: Any) -> None:
        """Runs the update. `factor` multiplies the gradients first; see `NativeUpdate._update_native` for `options`."""
        if factor is not None:
            first = self._inputs[0]
            # The factor is on the first device, but the parameters of a later stage are on another one.
            if factor.context != first.context or factor.dtype != first.dtype:
                factor = factor.as_in_context(first.context).astype(first.dtype)
            self._call.read(len(self._inputs), factor)
            options["scaled"] = 1
        self._call(**options)
        for copy, weight in self._copies:
            copy.copyto(weight)
