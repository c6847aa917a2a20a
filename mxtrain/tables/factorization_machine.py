"""Description of the factorization machine: linear terms, and a dot product of vectors for each pair of features."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Sequence

from mxtrain.model.features import FeatureModel, IndexedModel
from mxtrain.types import NonNegative
from mxtrain.types.kinds import IndexedFeatures, Number, Preference, RowClass, TableFeatures, Takes

if TYPE_CHECKING:
    from mxnet import gluon


class FactorizationMachine(FeatureModel, IndexedModel):
    """score = b + sum over i of w_i x_i + sum over pairs i < j of <v_i, v_j> x_i x_j, of features x_i.

    An id of a field is a feature with x = 1, a number one with x = the number. Several classes have a score each, with
    b, w and v of their own.

    Source: Rendle, "Factorization Machines" (2010), equation 1.
    """

    takes: ClassVar[Takes] = Takes(TableFeatures, IndexedFeatures, RowClass, Number, Preference)

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
