"""N-BEATS: stacks of dense layers, each of which explains a part of the past and forecasts with it.

Sources: Oreshkin et al., "N-BEATS: Neural basis expansion analysis for interpretable time series forecasting" (2020),
https://arxiv.org/abs/1905.10437; Olivares et al., "Neural basis expansion analysis with exogenous variables" (2021),
https://arxiv.org/abs/2104.05522, for the stack of covariates. Quantiles are not in either: a block forecasts the middle
one, which is the sum over blocks as in the paper, and the distances of the others from it.

Inputs and legend as in `networks`; moreover F = P + H all steps, E facts of an item, C = 1 + Q channels, K columns of a
basis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import gluon
from mxtrain.forecasting.networks import build_item_facts, item_width, scale_window

if TYPE_CHECKING:
    from mxtrain.forecasting.signature import SeriesSizes
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn
GENERIC, TREND, SEASONALITY, COVARIATES = "generic", "trend", "seasonality", "covariates"
"""Kinds of stacks."""
MAX_HARMONICS = 32


class NBeatsSettings(NamedTuple):
    """Settings of `NBeatsNetwork`.

    Attributes:
        stacks: kind of each stack.
        num_blocks: blocks of a stack.
        num_layers: dense layers of a block.
        units: units of a dense layer.
        degree: degree of the polynomial of a trend.
        by_mean: see `scale_window`.
    """

    stacks: Sequence[str]
    num_blocks: int
    num_layers: int
    units: int
    degree: int
    by_mean: bool


def trend_basis(past: int, horizon: int, degree: int) -> np.ndarray:
    """Returns powers of time, (F, degree + 1); time goes from 0 to 1 in the past, and anew in the steps to predict."""
    time_F = np.concatenate([np.arange(past) / past, np.arange(horizon) / horizon])
    return time_F[:, None] ** np.arange(degree + 1)


def season_basis(past: int, horizon: int, season: int) -> np.ndarray:
    """Returns a constant, and cosines and sines of the multiples of one cycle a season, (F, K). The paper has cycles of
    the horizon, which need not be a season."""
    number_J = np.arange(1, min(season // 2, MAX_HARMONICS) + 1)
    angle_FJ = 2 * np.pi * (np.arange(past + horizon) - past)[:, None] * number_J / season
    return np.concatenate([np.ones((past + horizon, 1)), np.cos(angle_FJ), np.sin(angle_FJ)], axis=1)


class NBeatsBlock(gluon.HybridBlock):
    """Dense layers, and their backcast and forecast: (B, P + E) -> (B, P), (B, H, Q).

    Args:
        num_quantiles: Q.
        sizes: sizes of the inputs.
        settings: widths and depth.
        kind: `GENERIC`; or what the outputs are combined of: `TREND`, `SEASONALITY`, `COVARIATES` (facts of the steps).
    """

    def __init__(self, num_quantiles: int, sizes: SeriesSizes, settings: NBeatsSettings, kind: str, **kwargs: Any):
        super().__init__(**kwargs)
        self._past, self._horizon, self._quantiles = sizes.past, sizes.horizon, num_quantiles
        basis_FK: Optional[np.ndarray] = None
        if kind == TREND:
            basis_FK = trend_basis(sizes.past, sizes.horizon, settings.degree)
        elif kind == SEASONALITY:
            basis_FK = season_basis(sizes.past, sizes.horizon, sizes.season)
        self._reads_known = kind == COVARIATES
        columns = sizes.num_known if basis_FK is None else basis_FK.shape[1]
        with self.name_scope():
            self.layers = nn.HybridSequential()
            width = sizes.past + item_width(sizes)
            for _ in range(settings.num_layers):
                self.layers.add(nn.Dense(settings.units, activation="relu", in_units=width))
                width = settings.units
            self.basis: Any = None
            if basis_FK is not None:
                self.basis = self.params.get_constant("basis", basis_FK.astype(np.float32))
            if kind == GENERIC:
                self.backcast = nn.Dense(sizes.past, in_units=width)
                self.forecast = nn.Dense(sizes.horizon * num_quantiles, in_units=width)
            else:
                self.factors = nn.Dense((1 + num_quantiles) * columns, in_units=width)

    def hybrid_forward(
        self, F: OperatorModule, input_BX: Array, known_BFK: Array, basis: Optional[Array] = None
    ) -> Tuple[Array, Array]:
        hidden_BU = self.layers(input_BX)
        if basis is None and not self._reads_known:
            forecast_BHQ = F.reshape(self.forecast(hidden_BU), shape=(0, self._horizon, self._quantiles))
            return self.backcast(hidden_BU), forecast_BHQ
        factor_BCK = F.reshape(self.factors(hidden_BU), shape=(0, 1 + self._quantiles, -1))
        if basis is None:
            part_BCF = F.batch_dot(factor_BCK, known_BFK, transpose_b=True)
        else:
            num_steps = self._past + self._horizon
            part_BCF = F.FullyConnected(factor_BCK, basis, no_bias=True, flatten=False, num_hidden=num_steps)
        past_BCP = F.slice_axis(part_BCF, axis=2, begin=0, end=self._past)
        future_BCH = F.slice_axis(part_BCF, axis=2, begin=self._past, end=None)
        backcast_BP = F.reshape(F.slice_axis(past_BCP, axis=1, begin=0, end=1), shape=(0, -1))
        return backcast_BP, F.transpose(F.slice_axis(future_BCH, axis=1, begin=1, end=None), axes=(0, 2, 1))


class NBeatsNetwork(gluon.HybridBlock):
    """Blocks, each of which sees the past without the backcasts before it; the forecast is the sum of all.

    Values that are unknown are 0 in each residual, also after backcasts.

    Args:
        num_quantiles: Q.
        sizes: sizes of the inputs.
        settings: widths and depth.
    """

    def __init__(self, num_quantiles: int, sizes: SeriesSizes, settings: NBeatsSettings, **kwargs: Any):
        super().__init__(**kwargs)
        self._by_mean, self._num_quantiles = settings.by_mean, num_quantiles
        with self.name_scope():
            self.items = build_item_facts(sizes)
            self.blocks: List[NBeatsBlock] = []
            for kind in settings.stacks:
                for _ in range(settings.num_blocks):
                    block = NBeatsBlock(num_quantiles, sizes, settings, kind)
                    setattr(self, f"{kind}{len(self.blocks)}", block)
                    self.blocks.append(block)

    def hybrid_forward(
        self, F: OperatorModule, value_BP: Array, observed_BP: Array, known_BFK: Array, *facts: Array
    ) -> Tuple[Array, Array]:
        scaled_BP, centre_B1, scale_B1 = scale_window(F, value_BP, observed_BP, self._by_mean)
        items_BE = [] if self.items is None else [self.items(*facts)]
        residual_BP, forecasts = scaled_BP, []
        for block in self.blocks:
            input_BX = F.concat(residual_BP, *items_BE, dim=1) if items_BE else residual_BP
            backcast_BP, forecast_BHQ = block(input_BX, known_BFK)
            residual_BP = (residual_BP - backcast_BP) * observed_BP
            forecasts.append(forecast_BHQ)
        quantile_BHQ = around_middle(F, F.add_n(*forecasts), self._num_quantiles)
        quantile_BHQ = F.broadcast_mul(quantile_BHQ, F.expand_dims(scale_B1, axis=2))
        return F.broadcast_add(quantile_BHQ, F.expand_dims(centre_B1, axis=2)), scale_B1


def around_middle(F: OperatorModule, raw_BHQ: Array, count: int) -> Array:
    """Converts free outputs to ascending ones: the middle one is unchanged, the others have positive distances from
    their neighbours."""
    free = [F.slice_axis(raw_BHQ, axis=2, begin=number, end=number + 1) for number in range(count)]
    middle = count // 2
    ascending = [free[middle]]
    # 2 less, as in `networks.ascending`: nine levels begin within a deviation.
    for one in free[middle + 1 :]:
        ascending.append(ascending[-1] + F.Activation(one - 2.0, act_type="softrelu"))
    for one in free[:middle][::-1]:
        ascending.insert(0, ascending[0] - F.Activation(one - 2.0, act_type="softrelu"))
    return F.concat(*ascending, dim=2) if count > 1 else ascending[0]
