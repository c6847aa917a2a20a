"""Recommendation networks on ids: matrix factorization, FISM, SVD++ and NeuMF."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Mapping, Optional, Sequence

import pydantic
from typing_extensions import Annotated

from mxtrain.model.networks.layers import Activation
from mxtrain.recommendation.model import Recommender
from mxtrain.types import Fraction, OpenFraction, Positive, PositiveFloat

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
        from mxtrain.recommendation.networks import FactorSizes, MatrixFactorizationNetwork

        return MatrixFactorizationNetwork(FactorSizes(num_users, num_items, self.units, mean, self.scale), prefix="")

    def score_all(self, values: Mapping[str, NDArray], inputs: Sequence[NDArray]) -> Optional[NDArray]:
        """See `Recommender.score_all`."""
        from mxtrain.recommendation.networks import MatrixFactorizationNetwork

        return MatrixFactorizationNetwork.score_all(values, inputs[0])


class ItemFactors(Recommender):
    """score = biases of user and item + product of the item's vector and the user's, which is the sum of further
    vectors of the items in the user's history, without the item itself.

    Source: Kabbur, Ning, Karypis, "FISM: Factored Item Similarity Models for Top-N Recommender Systems" (2013); with
    `user_vectors` Koren, https://doi.org/10.1145/1401890.1401944 (2008), section 4 (SVD++).
    """

    reads_history: ClassVar[bool] = True

    units: Positive = 64
    """Embedding size."""
    alpha: Fraction = 0.5
    """The sum is divided by the number of items to this power: 0 = a sum, 1 = a mean."""
    user_vectors: bool = False
    """If true, a user embedding is added to the sum."""
    dropout: OpenFraction = 0.0
    """Dropout probability of the user vector."""
    scale: PositiveFloat = 0.05
    """Standard deviation of the initial embeddings."""

    def build_recommender(self, num_users: int, num_items: int, mean: float) -> gluon.HybridBlock:
        """See `Recommender.build_recommender`."""
        from mxtrain.recommendation.networks import FactorSizes, ItemFactorsNetwork

        sizes = FactorSizes(num_users, num_items, self.units, mean, self.scale)
        return ItemFactorsNetwork(sizes, self.alpha, self.dropout, self.user_vectors, prefix="")

    def score_all(self, values: Mapping[str, NDArray], inputs: Sequence[NDArray]) -> Optional[NDArray]:
        """See `Recommender.score_all`."""
        from mxtrain.recommendation.networks import ItemFactorsNetwork

        return ItemFactorsNetwork.score_all(values, self.alpha, *inputs)


class SVDPlusPlus(ItemFactors):
    """`ItemFactors` with a vector of each user's own."""

    user_vectors: bool = True
    """If true, a user embedding is added to the sum."""


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
        from mxtrain.recommendation.networks import FactorSizes, NeuMFNetwork

        sizes = FactorSizes(num_users, num_items, self.units, mean, self.scale)
        return NeuMFNetwork(sizes, self.hidden, self.activation, self.dropout, prefix="")
