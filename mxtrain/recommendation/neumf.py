"""NeuMF: matrix factorization beside a multilayer perceptron."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

import pydantic
from typing_extensions import Annotated

from mxtrain.model.networks.layers import Activation
from mxtrain.recommendation.model import Recommender
from mxtrain.types import OpenFraction, Positive, PositiveFloat

if TYPE_CHECKING:
    from mxnet import gluon


class NeuMF(Recommender):
    """A weighted product of a user's and an item's vectors, beside a multilayer perceptron of further vectors.

    Source: He et al., "Neural Collaborative Filtering" (2017), https://arxiv.org/abs/1708.05031.
    """

    units: Positive = 16
    """Size of the embeddings that are multiplied."""
    hidden: Annotated[List[Positive], pydantic.Field(min_length=2)] = [64, 32, 16, 8]
    """Sizes of the perceptron: total size of user and item embeddings, then units of each layer."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    dropout: OpenFraction = 0.0
    """Dropout probability of the perceptron's last hidden layer."""
    scale: PositiveFloat = 0.05
    """Standard deviation of the initial embeddings."""

    def build_recommender(self, num_users: int, num_items: int, mean: float) -> gluon.HybridBlock:
        """See `Recommender.build_recommender`."""
        from mxtrain.recommendation import networks as recommendation

        return recommendation.NeuMFNetwork(
            num_users, num_items, self.units, self.hidden, self.activation, self.dropout, mean, self.scale, prefix=""
        )
