"""Wide & Deep: linear terms beside dense layers on vectors of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Sequence

from mxtrain.model.features import FeatureModel
from mxtrain.model.networks.layers import Activation
from mxtrain.types import OpenFraction, Positive
from mxtrain.types.kinds import Number, Preference, RowClass, TableFeatures, Takes

if TYPE_CHECKING:
    from mxnet import gluon


class DeepFeatures(FeatureModel):
    """Base: dense layers on vectors of ids."""

    takes: ClassVar[Takes] = Takes(TableFeatures, RowClass, Number, Preference)

    units: Positive = 8
    """Embedding size; in DeepFM both parts share the embeddings."""
    hidden: List[Positive] = [128, 64]
    """Units of each hidden layer, first to last."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    dropout: OpenFraction = 0.0
    """Dropout probability of hidden units."""


class WideDeep(DeepFeatures):
    """score = b + sum over i of w_i x_i + that of dense layers on the vectors of all ids and all numbers.

    The wide part reads the features as they are: crossed features are columns of the table, where somebody wants some.

    Source: Cheng et al., "Wide & Deep Learning for Recommender Systems" (2016), https://arxiv.org/abs/1606.07792,
    equation 3.
    """

    def build_features(self, num_classes: int, field_sizes: Sequence[int], num_numbers: int) -> gluon.HybridBlock:
        """See `FeatureModel.build_features`."""
        from mxtrain.tables import networks as features

        return features.WideDeepNetwork(
            num_classes, field_sizes, num_numbers, self.units, self.hidden, self.activation, self.dropout, prefix=""
        )
