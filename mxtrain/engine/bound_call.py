"""Binds an operator to the arrays that it reads and writes, for calls that are repeated in every step.

MXNet's own functions check each array and convert it to a C handle in every call. For the sixty arrays of a small
network's update that takes longer than the update itself.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any, List, Sequence

from mxtrain.engine.backend import mx, operator_handle

_base = mx.base


def are_same(arrays: Sequence[mx.nd.NDArray], others: Sequence[mx.nd.NDArray]) -> bool:
    """Returns True if both sequences contain the same array objects, so that a bound call can be reused."""
    return len(arrays) == len(others) and all(map(operator.is_, arrays, others))


class BoundCall:
    """An operator bound to arrays. Do not use it while autograd records.

    Args:
        name: name under which MXNet has registered the operator.
        inputs: input arrays in the operator's order.
        outputs: output arrays; inputs may be among them.
    """

    def __init__(self, name: str, inputs: Sequence[mx.nd.NDArray], outputs: Sequence[mx.nd.NDArray]):
        self._operator = operator_handle(name)
        # References keep the arrays alive: the C handles below do not.
        self._inputs, self._outputs = list(inputs), list(outputs)
        self._read, self._written = _base.c_handle_array(self._inputs), _base.c_handle_array(self._outputs)
        self._count = ctypes.c_int(len(self._outputs))
        self._pointer = ctypes.cast(self._written, ctypes.POINTER(_base.NDArrayHandle))
        self._types = ctypes.POINTER(ctypes.c_int)()

    def read(self, index: int, array: mx.nd.NDArray) -> None:
        """Replaces input number `index`."""
        self._inputs[index], self._read[index] = array, array.handle

    def write(self, index: int, array: mx.nd.NDArray) -> None:
        """Replaces output number `index`."""
        self._outputs[index], self._written[index] = array, array.handle

    def __call__(self, **attributes: Any) -> List[mx.nd.NDArray]:
        """Pushes one call to the engine and returns the outputs, which may not be written yet.

        Raises:
            MXNetError: the operator does not accept the arrays or attributes.
        """
        # MXNet's C interface takes attributes as text only, and parses them in every call.
        values = [str(value) for value in attributes.values()]
        _base.check_call(
            _base._LIB.MXImperativeInvokeEx(
                self._operator,
                ctypes.c_int(len(self._inputs)),
                self._read,
                ctypes.byref(self._count),
                ctypes.byref(self._pointer),
                ctypes.c_int(len(values)),
                _base.c_str_array(list(attributes)),
                _base.c_str_array(values),
                ctypes.byref(self._types),
            )
        )
        return self._outputs
