"""A multilayer perceptron: dense layers on the flattened sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Tuple

from mxtrain.model.base import Model
from mxtrain.model.networks.layers import Activation
from mxtrain.types import OpenFraction, Positive, Shape

if TYPE_CHECKING:
    from mxnet import gluon


class MLP(Model):
    """Dense layers of the given widths, each with an activation and dropout, then the output layer."""

    reads: ClassVar[Tuple[str, ...]] = ("images", "numbers")
    serves: ClassVar[Tuple[str, ...]] = ("classification", "regression")

    hidden: List[Positive] = [128, 64]
    """Units of each hidden layer, first to last; `[]` is a linear classifier."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    dropout: OpenFraction = 0.0
    """Probability that a hidden unit is dropped while training."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """The network, uninitialised; it takes a sample of any shape."""
        from mxtrain.model.networks import classifier

        return classifier.build_mlp(num_classes, self.hidden, self.activation, self.dropout)
