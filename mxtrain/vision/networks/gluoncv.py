"""Builds GluonCV's networks by name. Imports MXNet and GluonCV."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Dict, Iterator

from mxtrain.engine.backend import gluon
from mxtrain.runtime.hidden_torch import hidden_torch

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

with warnings.catch_warnings(), hidden_torch():
    # GluonCV uses the deprecated distutils, and warns of missing optional packages.
    warnings.simplefilter("ignore")
    import gluoncv.nn
    from gluoncv.model_zoo import get_model

CLASSES_ARGUMENT = {"hrnet": "num_classes"}
"""Prefix of a name -> argument for the number of classes, if it is not `classes`."""
DEFAULT_ARGUMENTS = {
    "nasnet": {"use_aux": False},
    "resnext101e": {"pretrained": False},
    "se_resnext101e": {"pretrained": False},
}
"""Prefix of a name -> arguments that disable auxiliary outputs and downloaded weights, which are on by default."""


class GroupNorm(gluon.HybridBlock):
    """Group normalisation of (B, C, H, W) with GluonCV's arguments and parameter names.

    GluonCV's own block reads shapes in its forward pass, so it cannot be hybridized; Gluon's has one scale per group.

    Source: Wu and He, "Group normalization" (2018).
    """

    def __init__(self, ngroups: int = 32, in_channels: int = 0, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._num_groups, self._epsilon = ngroups, epsilon
        with self.name_scope():
            self.gamma = self.params.get("gamma", shape=(in_channels,), init="ones", allow_deferred_init=True)
            self.beta = self.params.get("beta", shape=(in_channels,), init="zeros", allow_deferred_init=True)

    def hybrid_forward(self, F: OperatorModule, x: Array, gamma: Array, beta: Array) -> Array:
        grouped = F.reshape(x, shape=(0, self._num_groups, -1))
        centred = F.broadcast_sub(grouped, F.mean(grouped, axis=2, keepdims=True))
        variance = F.mean(F.square(centred), axis=2, keepdims=True)
        normalised = F.reshape_like(F.broadcast_mul(centred, F.rsqrt(variance + self._epsilon)), x)
        scale, shift = (F.reshape(parameter, shape=(1, -1, 1, 1)) for parameter in (gamma, beta))
        return F.broadcast_add(F.broadcast_mul(normalised, scale), shift)


@contextlib.contextmanager
def _working_group_norm() -> Iterator[None]:
    """Replaces GluonCV's group normalisation by `GroupNorm` while a network is built."""
    original = gluoncv.nn.GroupNorm
    gluoncv.nn.GroupNorm = GroupNorm
    try:
        yield
    finally:
        gluoncv.nn.GroupNorm = original


def build(name: str, num_classes: int, options: Dict[str, Any]) -> gluon.HybridBlock:
    """Builds a classification network.

    Args:
        name: GluonCV's name.
        num_classes: number of outputs.
        options: further arguments of GluonCV's function.
    """
    arguments = dict(options)
    for prefix, defaults in DEFAULT_ARGUMENTS.items():
        if name.startswith(prefix):
            arguments = {**defaults, **arguments}
    renamed = [argument for prefix, argument in CLASSES_ARGUMENT.items() if name.startswith(prefix)]
    with _working_group_norm():
        network = get_model(name, **{(renamed or ["classes"])[0]: num_classes}, **arguments)
    _fit_pruned_head(network, num_classes)
    return network


def build_pose(name: str, num_points: int, options: Dict[str, Any]) -> gluon.HybridBlock:
    """Builds a pose-estimation network.

    Args:
        name: GluonCV's name.
        num_points: number of key points, each with a heat map.
        options: further arguments of GluonCV's function.
    """
    return get_model(name, num_joints=num_points, **options)


def _fit_pruned_head(network: gluon.HybridBlock, num_classes: int) -> None:
    """Replaces the output layer of a pruned network, whose shapes come from a file for ImageNet's 1,000 classes."""
    head = getattr(network, "fc", None)
    if isinstance(head, gluon.nn.Dense) and head.weight.shape[0] != num_classes:
        with network.name_scope():
            network.fc = gluon.nn.Dense(num_classes, in_units=head.weight.shape[1])
