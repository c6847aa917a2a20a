"""Networks that score candidate items for users.

Inputs are user (B,), candidates (B, C) and, for networks with histories, history (B, H) and its length (B,); the output
is the score of each candidate (B, C). Ids are int32, lengths float32. Networks for features take rows of ids and
numbers instead.

Legend: B batch, C candidates, H items of a history (in NeuMF: hidden units), I all items, U units, K ids of a sample,
F fields, N = B C rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.model.networks.classifier import build_activation
from mxtrain.model.networks.embedding_table import EmbeddingTable

if TYPE_CHECKING:
    from mxtrain.recommendation.fields import RecommenderFields
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn
Values = Mapping[str, "nd.NDArray"]
"""Parameters by structural name."""


class FactorSizes(NamedTuple):
    """Sizes and initial values of networks with vectors of users and items.

    Attributes:
        num_users, num_items: rows of the embedding tables.
        units: size of the vectors, U.
        mean: initial value of the global bias: the mean rating, or 0.
        scale: standard deviation of the initial vectors.
    """

    num_users: int
    num_items: int
    units: int
    mean: float
    scale: float


class MatrixFactorizationNetwork(gluon.HybridBlock):
    """Matrix factorization: score = bias + user bias + item bias + dot product of user and item vectors.

    Source: Koren, Bell, Volinsky, "Matrix Factorization Techniques for Recommender Systems" (2009), equation 4.
    """

    def __init__(self, sizes: FactorSizes, **kwargs: Any):
        super().__init__(**kwargs)
        num_users, num_items, units, mean, scale = sizes
        with self.name_scope():
            self.users, self.items = EmbeddingTable(num_users, units, scale), EmbeddingTable(num_items, units, scale)
            self.user_bias, self.item_bias = EmbeddingTable(num_users, 1), EmbeddingTable(num_items, 1)
            self.bias = self.params.get("bias", shape=(1,), init=mx.init.Constant(mean))

    def hybrid_forward(self, F: OperatorModule, user_B: Array, item_BC: Array, bias: Array) -> Array:
        score_BC = dot_products(F, self.users(user_B), self.items(item_BC)) + drop_last_axis(F, self.item_bias(item_BC))
        return F.broadcast_add(F.broadcast_add(score_BC, self.user_bias(user_B)), F.reshape(bias, shape=(1, 1)))

    @staticmethod
    def score_all(values: Values, user_B: nd.NDArray) -> nd.NDArray:
        """Returns the scores of all items, (B, I), computed from parameters by name."""
        score_BI = nd.dot(values["users.weight"].take(user_B), values["items.weight"], transpose_b=True)
        return score_BI + values["item_bias.weight"].T + values["user_bias.weight"].take(user_B) + values["bias"]


class ItemFactorsNetwork(gluon.HybridBlock):
    """Matrix factorization whose user vector is computed from the items in the user's history.

    The score is bias + user bias + item bias + dot product of user and item vectors. The user vector is the sum of the
    history's item vectors, divided by their number to the power of `alpha`; if `with_users` is true, a learned vector
    of the user is added.

    Source: Kabbur, Ning, Karypis, "FISM: Factored Item Similarity Models for Top-N Recommender Systems" (2013),
    equation 4; with user vectors Koren, https://doi.org/10.1145/1401890.1401944 (2008), equation 15 (SVD++).
    """

    def __init__(self, sizes: FactorSizes, alpha: float, dropout: float, with_users: bool, **kwargs: Any):
        super().__init__(**kwargs)
        num_users, num_items, units, mean, scale = sizes
        self._alpha = alpha
        with self.name_scope():
            self.dropout = nn.Dropout(dropout) if dropout else None
            self.history, self.items = EmbeddingTable(num_items, units, scale), EmbeddingTable(num_items, units, scale)
            self.user_bias, self.item_bias = EmbeddingTable(num_users, 1), EmbeddingTable(num_items, 1)
            self.users = EmbeddingTable(num_users, units, scale) if with_users else None
            self.bias = self.params.get("bias", shape=(1,), init=mx.init.Constant(mean))

    def hybrid_forward(
        self, F: OperatorModule, user_B: Array, item_BC: Array, item_BH: Array, length_B: Array, bias: Array
    ) -> Array:
        user_BU = pool_history(F, self.history(item_BH), length_B, self._alpha)
        if self.users is not None:
            user_BU = user_BU + self.users(user_B)
        if self.dropout is not None:
            user_BU = self.dropout(user_BU)
        score_BC = dot_products(F, user_BU, self.items(item_BC)) + drop_last_axis(F, self.item_bias(item_BC))
        return F.broadcast_add(F.broadcast_add(score_BC, self.user_bias(user_B)), F.reshape(bias, shape=(1, 1)))

    @staticmethod
    def score_all(
        values: Values, alpha: float, user_B: nd.NDArray, item_BH: nd.NDArray, length_B: nd.NDArray
    ) -> nd.NDArray:
        """Returns the scores of all items, (B, I), computed from parameters by name."""
        user_BU = pool_history(nd, values["history.weight"].take(item_BH), length_B, alpha)
        if "users.weight" in values:
            user_BU = user_BU + values["users.weight"].take(user_B)
        score_BI = nd.dot(user_BU, values["items.weight"], transpose_b=True)
        return score_BI + values["item_bias.weight"].T + values["user_bias.weight"].take(user_B) + values["bias"]


class NeuMFNetwork(gluon.HybridBlock):
    """Neural matrix factorization: a weighted product of vectors (GMF) and a multilayer perceptron of other vectors.

    The first layer of the perceptron, a dense layer of the concatenated vectors, is computed as the sum of a dense
    layer of the user vector and one of the item vector. So the user's part is computed once for all candidates.

    Source: He et al., "Neural Collaborative Filtering" (2017), https://arxiv.org/abs/1708.05031, equations 9 to 12.
    """

    def __init__(self, sizes: FactorSizes, hidden: Sequence[int], activation: str, dropout: float, **kwargs: Any):
        super().__init__(**kwargs)
        num_users, num_items, units, mean, scale = sizes
        side = (hidden[0] + 1) // 2
        with self.name_scope():
            self.gmf_users, self.gmf_items = (EmbeddingTable(size, units, scale) for size in (num_users, num_items))
            self.mlp_users, self.mlp_items = (EmbeddingTable(size, side, scale) for size in (num_users, num_items))
            first, *further = hidden[1:]
            self.user_part = nn.Dense(first, flatten=False, use_bias=False, in_units=side)
            self.item_part = nn.Dense(first, flatten=False, in_units=side)
            self.mlp = nn.HybridSequential(prefix="")
            self.mlp.add(build_activation(activation))
            for count in further:
                self.mlp.add(nn.Dense(count, flatten=False), build_activation(activation))
            if dropout:
                self.mlp.add(nn.Dropout(dropout))
            self.output = nn.Dense(1, flatten=False, bias_initializer=mx.init.Constant(mean))

    def hybrid_forward(self, F: OperatorModule, user_B: Array, item_BC: Array) -> Array:
        gmf_BCU = F.broadcast_mul(F.expand_dims(self.gmf_users(user_B), axis=1), self.gmf_items(item_BC))
        user_B1H = F.expand_dims(self.user_part(self.mlp_users(user_B)), axis=1)
        mlp_BCH = self.mlp(F.broadcast_add(user_B1H, self.item_part(self.mlp_items(item_BC))))
        return drop_last_axis(F, self.output(F.concat(gmf_BCU, mlp_BCH, dim=2)))


class FeatureScores(gluon.HybridBlock):
    """Scores candidates with a network for rows of features: the features of the user, then those of one candidate.

    Inputs are ids (B, K) of one joined embedding table, those of the user followed by those of each candidate, and, if
    there are numeric features, numbers (B, M): for each candidate those of the user and its own. All ids of the table
    are in one input, because only then can large tables be trained by rows.

    Args:
        network: network from ids (N, F) and numbers (N, M / C) to scores (N, 1).
        fields: fields of users and items.
    """

    def __init__(self, network: gluon.Block, fields: RecommenderFields, **kwargs: Any):
        super().__init__(**kwargs)
        self._user_width, self._item_width = len(fields.user_sizes), len(fields.item_sizes)
        self._num_numbers = fields.num_numbers
        with self.name_scope():
            self.network = network

    def hybrid_forward(self, F: OperatorModule, id_BK: Array, *numbers: Array) -> Array:
        user_BF = F.slice_axis(id_BK, axis=1, begin=0, end=self._user_width)
        item_BK = F.slice_axis(id_BK, axis=1, begin=self._user_width, end=None)
        item_BCF = F.reshape(item_BK, shape=(0, -1, self._item_width))
        user_BCF = F.broadcast_like(F.expand_dims(user_BF, axis=1), item_BCF, lhs_axes=(1,), rhs_axes=(1,))
        width = self._user_width + self._item_width
        id_NF = F.reshape(F.concat(user_BCF, item_BCF, dim=2), shape=(-1, width))
        score_N1 = self.network(id_NF, *[F.reshape(array, shape=(-1, self._num_numbers)) for array in numbers])
        return drop_last_axis(F, F.reshape_like(score_N1, F.slice_axis(item_BCF, axis=2, begin=0, end=1)))


def dot_products(F: OperatorModule, user_BU: Array, item_BCU: Array) -> Array:
    """Returns the dot product of each candidate's vector and the user's vector, (B, C)."""
    return drop_last_axis(F, F.batch_dot(item_BCU, F.expand_dims(user_BU, axis=2)))


def drop_last_axis(F: OperatorModule, array_BC1: Array) -> Array:
    """Removes the last axis: (B, C, 1) to (B, C)."""
    return F.reshape(array_BC1, shape=(0, 0))


def pool_history(F: OperatorModule, vector_BHU: Array, length_B: Array, alpha: float) -> Array:
    """Returns the sum of a history's vectors divided by their number to the power of `alpha`, (B, U); 0 if empty."""
    one_BH = F.ones_like(drop_last_axis(F, F.slice_axis(vector_BHU, axis=2, begin=0, end=1)))
    mask_BH = F.SequenceMask(one_BH, length_B, use_sequence_length=True, axis=1)
    length_B1 = F.expand_dims(F.relu(length_B - 1) + 1, axis=1)  # at least 1
    weight_BH = F.broadcast_div(mask_BH, length_B1**alpha)
    # A matrix product takes half the time of masking and adding the vectors.
    return F.reshape(F.batch_dot(F.expand_dims(weight_BH, axis=1), vector_BHU), shape=(0, -1))
