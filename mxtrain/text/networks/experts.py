"""A sparsely gated mixture of experts in place of a feed-forward sublayer. Imports MXNet.

    router -> probabilities of the experts -> the top k, renormalised -> sum of their outputs by these weights

Every expert computes every token, and its weight is 0 for tokens that are not routed to it. Shapes then do not depend
on the data, so the network is hybridized, cut into stages and exported like any other.

With a capacity, an expert takes the first tokens of a window that are routed to it; for later ones its weight is 0, so
what no expert takes passes through the residual connection alone. In GShard, the second choices of a window come after
all first ones, so a token depends on later tokens. Here a token depends on earlier tokens only, as generation needs.

Legend: T tokens, B batch, U units, E experts, K experts of a token.

Sources: Shazeer et al., https://arxiv.org/abs/1701.06538; load balancing: Fedus et al. (Switch Transformer),
https://arxiv.org/abs/2101.03961, equations 4 to 6, with one window as the group of tokens as in Lepikhin et al.
(GShard), https://arxiv.org/abs/2006.16668, algorithm 1; weights of the top k: Jiang et al. (Mixtral),
https://arxiv.org/abs/2401.04088, section 2.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Sequence, Tuple

from mxtrain.engine.backend import gluon
from mxtrain.model.networks.bert import normal

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class Routing(NamedTuple):
    """The choice of experts for each token, (T, B, E) each.

    Attributes:
        probability_TBE: softmax over all experts.
        is_chosen_TBE: 1 for the K experts of a token, otherwise 0.
        weight_TBE: probabilities of the K experts divided by their sum, otherwise 0.
    """

    probability_TBE: Any
    is_chosen_TBE: Any
    weight_TBE: Any


class Router(gluon.HybridBlock):
    """Chooses experts for tokens, (T, B, U) to three arrays (T, B, E), see `Routing`."""

    def __init__(self, units: int, num_experts: int, experts_per_token: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._num_experts, self._experts_per_token = num_experts, experts_per_token
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(num_experts, units), init=normal())

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array, weight: Array) -> Tuple[Array, ...]:
        # Mixed precision leaves `dot` in float32, which keeps the choice stable (Switch Transformer, section 2.4).
        probability_TBE = F.softmax(F.dot(x_TBU, weight, transpose_b=True))
        # The choice has no gradient: the router learns from the weights of the chosen experts and from `balance`.
        index_TBK = F.topk(F.BlockGrad(probability_TBE), k=self._experts_per_token)
        is_chosen_TBE = F.where(
            F.sum(F.one_hot(index_TBK, self._num_experts), axis=-2),
            F.ones_like(probability_TBE),
            F.zeros_like(probability_TBE),
        )
        chosen_TBE = probability_TBE * is_chosen_TBE
        return probability_TBE, is_chosen_TBE, F.broadcast_div(chosen_TBE, F.sum(chosen_TBE, axis=-1, keepdims=True))


class Experts(gluon.HybridBlock):
    """Mixture of experts with its load-balancing loss.

    Inputs are states (T, B, U) and 1 for tokens that count, (T, B, 1). Outputs are the new states (T, B, U), the
    load-balancing loss of each window (B,), and the number of its tokens that each expert gets, (B, E).

    Args:
        units: U.
        experts: blocks that map (T, B, U) to (T, B, U).
        experts_per_token: K.
        capacity: number of tokens of a window that an expert takes; 0 = all that are routed to it.
    """

    def __init__(
        self,
        units: int,
        experts: Sequence[gluon.HybridBlock],
        experts_per_token: int,
        capacity: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._num_experts, self._experts_per_token, self._capacity = len(experts), experts_per_token, capacity
        with self.name_scope():
            self.router = Router(units, len(experts), experts_per_token, prefix="router_")
            self.experts = gluon.nn.HybridSequential(prefix="")
            self.experts.add(*experts)

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array, counts_TB1: Array) -> Tuple[Array, Array, Array]:
        routing = Routing(*self.router(x_TBU))
        y_TBU = self._mix(F, x_TBU, self._limited(F, routing, self._count(F, routing.is_chosen_TBE)))
        count_B1 = F.maximum(F.sum(counts_TB1, axis=0), 1)
        load_BE = F.sum(F.broadcast_mul(routing.is_chosen_TBE, counts_TB1), axis=0)
        probability_BE = F.broadcast_div(F.sum(F.broadcast_mul(routing.probability_TBE, counts_TB1), axis=0), count_B1)
        share_BE = F.broadcast_div(load_BE, count_B1 * self._experts_per_token)
        # Taken over each window by itself: a sum over samples is the same on any number of devices.
        balance_B = F.sum(share_BE * probability_BE, axis=-1) * self._num_experts
        return y_TBU, balance_B, load_BE

    def step(self, F: OperatorModule, x_1BU: Array, memory: List[Array]) -> Tuple[Array, List[Array]]:
        """Computes the new state of one more token.

        Args:
            x_1BU: state of the token.
            memory: number of the previous tokens that were routed to each expert, (B, E); empty if there are none.

        Returns:
            The new state (1, B, U), and the memory including this token, which is empty without a capacity.
        """
        routing = Routing(*self.router(x_1BU))
        if not self._capacity:
            return self._mix(F, x_1BU, routing.weight_TBE), []
        count_BE = F.reshape(F.cast(routing.is_chosen_TBE, "float32"), shape=(-3, 0))
        count_BE = count_BE + memory[0] if memory else count_BE
        return self._mix(F, x_1BU, self._limited(F, routing, F.expand_dims(count_BE, axis=0))), [count_BE]

    def _count(self, F: OperatorModule, is_chosen_TBE: Array) -> Any:
        """Returns the number of tokens up to each token that are routed to each expert, (T, B, E)."""
        if not self._capacity:
            return None
        # A sum up to each token as a product: exporters know it. Counts need float32 also in narrow networks.
        chosen_TBE = F.cast(is_chosen_TBE, "float32")
        position_T = F.contrib.arange_like(chosen_TBE, axis=0)
        is_earlier_TT = F.broadcast_lesser_equal(F.expand_dims(position_T, axis=0), F.expand_dims(position_T, axis=1))
        count_TC = F.dot(is_earlier_TT, F.reshape(chosen_TBE, shape=(0, -1)))  # C = B * E
        return F.reshape(count_TC, shape=(0, -4, -1, self._num_experts))

    def _limited(self, F: OperatorModule, routing: Routing, count_TBE: Any) -> Array:
        """Returns the weights, which are 0 for tokens that come when an expert is full."""
        if not self._capacity:
            return routing.weight_TBE
        return F.where(count_TBE <= self._capacity, routing.weight_TBE, F.zeros_like(routing.weight_TBE))

    def _mix(self, F: OperatorModule, x_TBU: Array, weight_TBE: Array) -> Array:
        y_TBU: Any = None
        # Added one by one, so that a stage may begin at each expert and only one sum is sent between devices.
        for number, expert in enumerate(self.experts):
            weight_TB1 = F.slice_axis(weight_TBE, axis=-1, begin=number, end=number + 1)
            part_TBU = F.broadcast_mul(expert(x_TBU), weight_TB1)
            y_TBU = part_TBU if y_TBU is None else y_TBU + part_TBU
        return y_TBU
