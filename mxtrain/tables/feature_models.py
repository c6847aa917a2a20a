"""Networks for the features of a table: factorization machines, Wide & Deep and DeepFM."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Sequence

from mxtrain.model.features import FeatureModel, IndexedModel
from mxtrain.model.networks.layers import Activation
from mxtrain.types import NonNegative, OpenFraction, Positive
from mxtrain.types.kinds import ClassSet, IndexedFeatures, Number, Preference, RowClass, TableFeatures, Takes

if TYPE_CHECKING:
    from mxnet import gluon


class FactorizationMachine(FeatureModel, IndexedModel):
    """score = b + sum over i of w_i x_i + sum over pairs i < j of <v_i, v_j> x_i x_j, of features x_i.

    An id of a field is a feature with x = 1, a number one with x = the number. Several classes have a score each, with
    b, w and v of their own.

    Source: Rendle, "Factorization Machines" (2010), equation 1.
    """

    takes: ClassVar[Takes] = Takes(TableFeatures, IndexedFeatures, RowClass, ClassSet, Number, Preference)

    units: NonNegative = 8
    """Size of each feature's embedding; 0 = linear terms only."""

    def build_features(self, num_classes: int, field_sizes: Sequence[int], num_numbers: int) -> gluon.HybridBlock:
        """See `FeatureModel.build_features`."""
        from mxtrain.tables import networks as features

        return features.FactorizationMachineNetwork(num_classes, field_sizes, num_numbers, self.units, prefix="")

    def build_indexed(self, num_classes: int, num_indices: int) -> gluon.HybridBlock:
        """See `IndexedModel.build_indexed`."""
        from mxtrain.tables import networks as features

        return features.IndexedMachineNetwork(num_classes, num_indices, self.units, prefix="")


class DeepFeatures(FeatureModel):
    """Base: dense layers on vectors of ids."""

    takes: ClassVar[Takes] = Takes(TableFeatures, RowClass, ClassSet, Number, Preference)

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


class DeepFM(DeepFeatures):
    """score = that of a factorization machine + that of dense layers on the vectors v_i x_i of all features.

    Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction" (2017),
    https://arxiv.org/abs/1703.04247, equations 1 to 4.
    """

    def build_features(self, num_classes: int, field_sizes: Sequence[int], num_numbers: int) -> gluon.HybridBlock:
        """See `FeatureModel.build_features`."""
        from mxtrain.tables import networks as features

        return features.DeepFMNetwork(
            num_classes, field_sizes, num_numbers, self.units, self.hidden, self.activation, self.dropout, prefix=""
        )
