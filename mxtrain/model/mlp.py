"""A multilayer perceptron: dense layers on the flattened sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Sequence

from mxtrain.model.features import FeatureModel
from mxtrain.model.networks.layers import Activation
from mxtrain.types import OpenFraction, Positive, Shape
from mxtrain.types.kinds import Arrays, ClassIndex, ClassSet, Number, RowClass, TableFeatures, Takes

if TYPE_CHECKING:
    from mxnet import gluon


class MLP(FeatureModel):
    """Dense layers of the given widths, each with an activation and dropout, then the output layer."""

    takes: ClassVar[Takes] = Takes(Arrays, TableFeatures, ClassIndex, ClassSet, Number, RowClass)

    hidden: List[Positive] = [128, 64]
    """Units of each hidden layer, first to last; `[]` is a linear classifier."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    dropout: OpenFraction = 0.0
    """Dropout probability of hidden units."""
    units: Positive = 8
    """Embedding size of the categories of a table."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized; it takes a sample of any shape."""
        from mxtrain.model.networks import classifier

        return classifier.build_mlp(num_classes, self.hidden, self.activation, self.dropout)

    def build_features(self, num_classes: int, field_sizes: Sequence[int], num_numbers: int) -> gluon.HybridBlock:
        """See `FeatureModel.build_features`; categories enter as embeddings."""
        mlp = self.build(num_classes, (num_numbers,))
        if not field_sizes:
            return mlp
        from mxtrain.model.networks.embedding_table import EmbeddedMLP

        return EmbeddedMLP(mlp, field_sizes, self.units, prefix="")
