"""Replaces the array of a Gluon parameter by one of another shape, for which Gluon has no function."""

from __future__ import annotations

from mxtrain.engine.backend import gluon, nd


def exchange(parameter: gluon.Parameter, array: nd.NDArray, grad_req: str) -> None:
    """Replaces the data of a parameter by an array, without a copy. The parameter is then on the array's device only.

    Args:
        parameter: an initialised parameter. Callers must discard graphs that were traced with it.
        array: the new data, of any shape.
        grad_req: "write" to allocate a gradient, or "null".
    """
    parameter._data = parameter._grad = parameter._var = None
    parameter._shape = array.shape
    parameter.grad_req = "null"
    parameter.dtype = array.dtype
    # Sets the devices of the parameter; the next line replaces the array.
    parameter._init_impl(nd.zeros((1,), ctx=array.context, dtype=array.dtype), [array.context])
    parameter._data = [array]
    parameter.grad_req = grad_req
