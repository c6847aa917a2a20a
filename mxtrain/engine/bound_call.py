"""An operator together with the arrays that it reads and writes, for calls that are made in every step.

MXNet's own functions look at each array and make a handle of each again: for the sixty arrays of a small network's
update that takes longer than the update.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any, List, Sequence

from mxtrain.engine.backend import mx, operator_handle

_base = mx.base


def are_same(arrays: Sequence[mx.nd.NDArray], others: Sequence[mx.nd.NDArray]) -> bool:
    """Returns True if these are the very arrays that a call was bound to."""
    return len(arrays) == len(others) and all(map(operator.is_, arrays, others))


class BoundCall:
    """An operator bound to arrays. Not for what autograd records.

    Args:
        name: of the operator, as MXNet has it registered.
        inputs: what it reads, in its order.
        outputs: what it writes; some may be among `inputs`.
    """

    def __init__(self, name: str, inputs: Sequence[mx.nd.NDArray], outputs: Sequence[mx.nd.NDArray]):
        self._operator = operator_handle(name)
        self._inputs, self._outputs = list(inputs), list(outputs)  # alive as long as their handles are used
        self._read, self._written = _base.c_handle_array(self._inputs), _base.c_handle_array(self._outputs)
        self._count = ctypes.c_int(len(self._outputs))
        self._pointer = ctypes.cast(self._written, ctypes.POINTER(_base.NDArrayHandle))
        self._types = ctypes.POINTER(ctypes.c_int)()

    def read(self, place: int, array: mx.nd.NDArray) -> None:
        """Puts another array in the place of an input."""
        self._inputs[place], self._read[place] = array, array.handle

    def write(self, place: int, array: mx.nd.NDArray) -> None:
        """Puts another array in the place of an output."""
        self._outputs[place], self._written[place] = array, array.handle

    def __call__(self, **attributes: Any) -> List[mx.nd.NDArray]:
        """Puts one call into the engine; returns what it will have written.

        Raises:
            MXNetError: the operator cannot take such arrays or attributes.
        """
        values = [str(value) for value in attributes.values()]
        _base.check_call(_base._LIB.MXImperativeInvokeEx(
            self._operator, ctypes.c_int(len(self._inputs)), self._read, ctypes.byref(self._count),
            ctypes.byref(self._pointer), ctypes.c_int(len(values)), _base.c_str_array(list(attributes)),
            _base.c_str_array(values), ctypes.byref(self._types),
        ))  # fmt: skip
        return self._outputs

