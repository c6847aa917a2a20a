"""DeepFM: a factorization machine, and dense layers on the same vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from mxtrain.tables.wide_deep import DeepFeatures

if TYPE_CHECKING:
    from mxnet import gluon


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
