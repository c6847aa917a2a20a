"""The network of DeepAR. Imports MXNet.

Legend: B batch, P past steps, C of them that are unrolled, H steps to predict, T = C + H, K facts of a step, E facts of
an item, I inputs of a step, U units, R raw outputs of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Sequence, Tuple

from mxtrain.engine.backend import gluon
from mxtrain.forecasting.networks import build_item_facts, item_width, scale_window
from mxtrain.forecasting.sampled_paths import NUM_RAW, lags_of
from mxtrain.model.networks.lstm_layer import add_lstm_parameters, run_lstm

if TYPE_CHECKING:
    from mxtrain.forecasting.signature import SeriesSizes
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn


class RecurrentLayer(gluon.HybridBlock):
    """An LSTM layer: (T, B, I), state and cell (B, U) -> (T, B, U), and state and cell after the last step."""

    def __init__(self, width: int, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._units = units
        with self.name_scope():
            add_lstm_parameters(self, width, units)

    def hybrid_forward(
        self,
        F: OperatorModule,
        x_TBI: Array,
        state_BU: Array,
        cell_BU: Array,
        i2h_weight: Array,
        h2h_weight: Array,
        i2h_bias: Array,
        h2h_bias: Array,
    ) -> Tuple[Array, Array, Array]:
        parameters = (i2h_weight, h2h_weight, i2h_bias, h2h_bias)
        return run_lstm(F, x_TBI, state_BU, cell_BU, parameters, self._units)


class RecurrentSettings(NamedTuple):
    """Settings of `DeepARNetwork`.

    Attributes:
        units: U.
        num_layers: number of LSTM layers.
        dropout: dropout probability between layers.
        distribution: one of `NUM_RAW`.
    """

    units: int
    num_layers: int
    dropout: float
    distribution: str


class DeepARNetwork(gluon.HybridBlock):
    """LSTM layers over lagged values, the calendar and the item, which predict a distribution of each next value.

    Outputs are raw outputs (B, T, R), the scale of each window (B, 1), and values and flags of the unrolled past in
    that scale, (B, C) each.

    Source: Salinas et al., "DeepAR: Probabilistic Forecasting with Autoregressive Recurrent Networks" (2017),
    https://arxiv.org/abs/1704.04110.

    Args:
        sizes: sizes of the inputs.
        settings: widths and depth.
    """

    def __init__(self, sizes: SeriesSizes, settings: RecurrentSettings, **kwargs: Any):
        super().__init__(**kwargs)
        self._past, self._horizon, self._units = sizes.past, sizes.horizon, settings.units
        self._lags = lags_of(sizes.season)
        self._context = sizes.past - self._lags[-1]
        self._num_facts = bool(sizes.num_static) + bool(sizes.category_sizes)
        with self.name_scope():
            self.items = build_item_facts(sizes)
            # Reads lagged values, the flag of the last one, facts of the step, of the item, and the size of the scale.
            self.input_width = width = len(self._lags) + 2 + sizes.num_known + item_width(sizes)
            self.layers = nn.HybridSequential()
            for number in range(settings.num_layers):
                self.layers.add(RecurrentLayer(settings.units if number else width, settings.units))
            self.dropout = nn.Dropout(settings.dropout)
            self.output = nn.Dense(NUM_RAW[settings.distribution], flatten=False, in_units=settings.units)

    def hybrid_forward(
        self, F: OperatorModule, value_BP: Array, observed_BP: Array, known_BFK: Array, *more: Array
    ) -> Tuple[Array, Array, Array, Array]:
        future_BH, future_observed_BH = more[self._num_facts :]
        scaled_BP, _, scale_B1 = scale_window(F, value_BP, observed_BP, by_mean=True)
        item_BE = self._item(F, scale_B1, more[: self._num_facts])
        scaled_BF = F.concat(scaled_BP, F.broadcast_div(future_BH, scale_B1), dim=1)
        observed_BF = F.concat(observed_BP, future_observed_BH, dim=1)
        first, end = self._past - self._context, self._past + self._horizon
        x_TBI = self._inputs(F, scaled_BF, observed_BF, known_BFK, item_BE, (first, end))
        raw_TBR, _ = self._unroll(F, x_TBI, self._zero_states(F, value_BP))
        raw_BTR = F.transpose(raw_TBR, axes=(1, 0, 2))
        return (
            raw_BTR,
            scale_B1,
            F.slice_axis(scaled_BP, axis=1, begin=first, end=self._past),
            F.slice_axis(observed_BP, axis=1, begin=first, end=self._past),
        )

    def start(self, F: OperatorModule, value_BP: Array, observed_BP: Array, known_BFK: Array, *facts: Array) -> Any:
        """Unrolls the past: returns scaled values (B, P), facts of the items (B, E), the scale (B, 1), then state and
        cell of each layer (B, U)."""
        scaled_BP, _, scale_B1 = scale_window(F, value_BP, observed_BP, by_mean=True)
        item_BE = self._item(F, scale_B1, facts)
        first = self._past - self._context
        x_TBI = self._inputs(F, scaled_BP, observed_BP, known_BFK, item_BE, (first, self._past))
        _, states = self._unroll(F, x_TBI, self._zero_states(F, value_BP))
        return [scaled_BP, item_BE, scale_B1, *states]

    def step(self, F: OperatorModule, x_BI: Array, states: Sequence[Array]) -> Any:
        """Returns raw outputs (B, R) for the inputs of one step, then state and cell of each layer."""
        raw_1BR, states = self._unroll(F, F.expand_dims(x_BI, axis=0), states)
        return [F.reshape(raw_1BR, shape=(-3, 0)), *states]

    def _item(self, F: OperatorModule, scale_B1: Array, facts: Sequence[Array]) -> Array:
        size_B1 = F.log(scale_B1)
        return size_B1 if self.items is None else F.concat(size_B1, self.items(*facts), dim=1)

    def _zero_states(self, F: OperatorModule, value_BP: Array) -> List[Array]:
        first_B1 = F.BlockGrad(F.zeros_like(F.slice_axis(value_BP, axis=1, begin=0, end=1)))
        zero_BU = F.broadcast_axis(first_B1, axis=1, size=self._units)
        return [zero_BU] * (2 * len(self.layers))

    def _inputs(
        self,
        F: OperatorModule,
        scaled_BF: Array,
        observed_BF: Array,
        known_BFK: Array,
        item_BE: Array,
        steps: Tuple[int, int],
    ) -> Array:
        """Returns the inputs of the steps from the first up to the last of `steps`, (T, B, I)."""
        first, end = steps
        lagged = [
            F.expand_dims(F.slice_axis(scaled_BF, axis=1, begin=first - lag, end=end - lag), axis=2)
            for lag in self._lags
        ]
        flag_BT1 = F.expand_dims(F.slice_axis(observed_BF, axis=1, begin=first - 1, end=end - 1), axis=2)
        known_BTK = F.slice_axis(known_BFK, axis=1, begin=first, end=end)
        item_BTE = F.broadcast_axis(F.expand_dims(item_BE, axis=1), axis=1, size=end - first)
        return F.transpose(F.concat(*lagged, flag_BT1, known_BTK, item_BTE, dim=2), axes=(1, 0, 2))

    def _unroll(self, F: OperatorModule, x_TBI: Array, states: Sequence[Array]) -> Tuple[Array, List[Array]]:
        x_TBU, after = x_TBI, []
        for number, layer in enumerate(self.layers):
            x_TBU, state_BU, cell_BU = layer(x_TBU, *states[2 * number : 2 * number + 2])
            if number + 1 < len(self.layers):  # dropped outputs of the last layer would blur the distributions
                x_TBU = self.dropout(x_TBU)
            after += [state_BU, cell_BU]
        return self.output(x_TBU), after
