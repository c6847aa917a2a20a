"""Matrix factorization: a vector for each user and each item, whose product is the score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Optional, Sequence

from mxtrain.recommendation.model import Recommender
from mxtrain.types import Positive, PositiveFloat

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray


class MatrixFactorization(Recommender):
    """score = bias + bias of the user + bias of the item + product of their vectors.

    Source: Koren, Bell, Volinsky, "Matrix Factorization Techniques for Recommender Systems" (2009).
    """

    units: Positive = 32
    """Embedding size."""
    scale: PositiveFloat = 0.05
    """Standard deviation of the initial embeddings."""

    def build_recommender(self, num_users: int, num_items: int, mean: float) -> gluon.HybridBlock:
        """See `Recommender.build_recommender`."""
        from mxtrain.recommendation import networks as recommendation

        return recommendation.MatrixFactorizationNetwork(num_users, num_items, self.units, mean, self.scale, prefix="")

    def score_all(self, values: Mapping[str, NDArray], inputs: Sequence[NDArray]) -> Optional[NDArray]:
        """See `Recommender.score_all`."""
        from mxtrain.recommendation import networks as recommendation

        return recommendation.MatrixFactorizationNetwork.score_all(values, inputs[0])
