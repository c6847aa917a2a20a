"""Where parameters are: copies on devices, and which of them an optimizer updates. Imports MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List

if TYPE_CHECKING:
    import mxnet as mx
    from mxnet import gluon


def move(parameter: gluon.Parameter, devices: List[mx.Context]) -> None:
    """Puts copies of a parameter on these devices instead of where it is, to the bit: `reset_ctx` alone averages."""
    if parameter.list_ctx() != devices:
        value = parameter.list_data()[0].copy()
        parameter.reset_ctx(devices)
        parameter.set_data(value)


def balanced_owners(sizes: Dict[str, int], num_replicas: int) -> Dict[str, int]:
    """Assigns each parameter to the replica that updates it: in order, each to the one with the fewest elements so far,
    so that all replicas update at the same time."""
    load = [0] * num_replicas
    owners = {}
    for name, size in sizes.items():
        owners[name] = load.index(min(load))
        load[owners[name]] += size
    return owners
