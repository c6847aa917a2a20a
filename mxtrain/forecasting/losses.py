"""Losses of forecasts.

Legend: B batch, C unrolled past steps, H steps to predict, T = C + H, Q quantiles, R raw outputs of a step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.forecasting.forecasters import DeepAR
from mxtrain.forecasting.kinds import FutureValues
from mxtrain.forecasting.sampled_paths import GAUSSIAN, LEAST_FREEDOM, LEAST_SPREAD, NEGATIVE_BINOMIAL
from mxtrain.loss.quantile import QuantileLoss, pinball
from mxtrain.loss.spec import Loss
from mxtrain.types.kinds import Number, Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.model.spec import Model
    from mxtrain.types.annotations import Array, OperatorModule


class ForecastLoss(Loss):
    """Base of losses of forecasts."""

    takes: ClassVar[Takes] = Takes(FutureValues)
    reads: ClassVar[Literal["quantiles", "likelihood"]] = "quantiles"
    """Outputs of a network that it compares, see `ForecastModel.outputs`."""

    def build_for(self, levels: Sequence[float], model: Model) -> gluon.HybridBlock:
        """Builds the block (*outputs, values (B, H), flags of known values (B, H)) -> loss (B,), weight (B,).

        Args:
            levels: levels of the quantiles, ascending.
            model: the model, whose distribution it is.
        """
        raise NotImplementedError


class Pinball(ForecastLoss, QuantileLoss):
    """Quantile loss (pinball loss): max(level * e, (level - 1) * e) of the difference e of value and quantile, in the
    scale of each window, twice the mean over levels and known values; for task=regression in units of the deviation,
    twice the mean over levels and targets.

    Source: Koenker and Bassett, "Regression Quantiles" (1978).
    """

    takes: ClassVar[Takes] = Takes(FutureValues, Number)

    def build_for(self, levels: Sequence[float], model: Model) -> gluon.HybridBlock:
        """See `ForecastLoss.build_for`."""
        from mxtrain.loss.function_block import FunctionBlock

        def compute(
            F: OperatorModule, quantile_BHQ: Array, scale_B1: Array, value_BH: Array, observed_BH: Array
        ) -> Tuple[Array, Array]:
            total_BH: Any = 0.0
            for number, level in enumerate(levels):
                one_BH = F.reshape(F.slice_axis(quantile_BHQ, axis=2, begin=number, end=number + 1), shape=(0, -1))
                total_BH = total_BH + pinball(F, one_BH, value_BH, level)
            loss_BH = F.broadcast_div(total_BH * (2 / len(levels)), scale_B1) * observed_BH
            return F.sum(loss_BH, axis=1), F.sum(observed_BH, axis=1)

        return FunctionBlock(compute, weighted=True)


class Likelihood(ForecastLoss):
    """Negative log likelihood of each known value, past and future, under the distribution that was predicted from the
    values before it; in the scale of each window, for counts of the counts themselves."""

    reads: ClassVar[Literal["quantiles", "likelihood"]] = "likelihood"

    def build_for(self, levels: Sequence[float], model: Model) -> gluon.HybridBlock:
        """See `ForecastLoss.build_for`."""
        from mxtrain.loss.function_block import FunctionBlock

        if not isinstance(model, DeepAR):
            raise ConfigError("loss=likelihood is for model=deepar. Type loss=quantile.")
        distribution = model.distribution

        def compute(
            F: OperatorModule,
            raw_BTR: Array,
            scale_B1: Array,
            past_BC: Array,
            past_observed_BC: Array,
            value_BH: Array,
            observed_BH: Array,
        ) -> Tuple[Array, Array]:
            value_BT = F.concat(past_BC, F.broadcast_div(value_BH, scale_B1), dim=1)
            observed_BT = F.concat(past_observed_BC, observed_BH, dim=1)
            if distribution == NEGATIVE_BINOMIAL:
                value_BT = F.broadcast_mul(value_BT, scale_B1)
            loss_BT = negative_log_likelihood(F, raw_BTR, value_BT, scale_B1, distribution) * observed_BT
            return F.sum(loss_BT, axis=1), F.sum(observed_BT, axis=1)

        return FunctionBlock(compute, weighted=True)


def negative_log_likelihood(
    F: OperatorModule, raw_BTR: Array, value_BT: Array, scale_B1: Array, distribution: str
) -> Array:
    """Returns the negative log likelihood of each value, (B, T).

    Args:
        F: mx.nd or mx.sym.
        raw_BTR: raw outputs of the network; `sampled_paths.draw` draws from the same distribution.
        value_BT: values, scaled but for counts.
        scale_B1: scales.
        distribution: one of `sampled_paths.NUM_RAW`.
    """

    def raw(number: int) -> Array:
        return F.reshape(F.slice_axis(raw_BTR, axis=2, begin=number, end=number + 1), shape=(0, -1))

    def positive(number: int, least: float) -> Array:
        return F.Activation(raw(number), act_type="softrelu") + least

    spread_BT = positive(1, LEAST_SPREAD)
    if distribution == NEGATIVE_BINOMIAL:
        mean_BT = F.broadcast_mul(positive(0, 1e-10), scale_B1)
        odds_BT, size_BT = spread_BT * mean_BT, 1 / spread_BT
        chance = F.gammaln(value_BT + size_BT) - F.gammaln(size_BT) - F.gammaln(value_BT + 1)
        return -(chance - size_BT * F.log(1 + odds_BT) + value_BT * (F.log(odds_BT) - F.log(1 + odds_BT)))
    error_BT = (value_BT - raw(0)) / spread_BT
    if distribution == GAUSSIAN:
        return 0.5 * F.square(error_BT) + F.log(spread_BT) + 0.5 * math.log(2 * math.pi)
    freedom_BT = positive(2, LEAST_FREEDOM)
    half_BT = (freedom_BT + 1) / 2
    normalizer = F.gammaln(half_BT) - F.gammaln(freedom_BT / 2) - 0.5 * F.log(math.pi * freedom_BT)
    return half_BT * F.log(1 + F.square(error_BT) / freedom_BT) + F.log(spread_BT) - normalizer
