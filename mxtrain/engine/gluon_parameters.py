"""Exchanges the array of a Gluon parameter for one of another shape, which Gluon has no call for."""

from __future__ import annotations

from mxtrain.engine.backend import gluon, nd


def exchange(parameter: gluon.Parameter, array: nd.NDArray, grad_req: str) -> None:
    """Makes an array the parameter's, without a copy, on the array's device alone.

    Args:
        parameter: initialised; graphs that were traced with it must be forgotten by whoever holds them.
        array: of any shape, of the parameter's type.
        grad_req: "write", for which it gets a gradient, or "null".
    """
    parameter._data = parameter._grad = parameter._var = None
    parameter._shape = array.shape
    parameter.grad_req = "null"
    parameter.dtype = array.dtype
    parameter._init_impl(nd.zeros((1,), ctx=array.context, dtype=array.dtype), [array.context])  # what finds a device
    parameter._data = [array]
    parameter.grad_req = grad_req
