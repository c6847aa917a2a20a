"""Forecasting networks.

Inputs are values (B, P), 0 where unknown, flags of known values (B, P), facts of past and future steps (B, P + H, K),
and where items have them numbers (B, S) and ids (B, N) int32.

Legend: B batch, P past steps, H steps to predict, K facts of a step, S numbers of an item, N categories of an item, Q
quantiles, U units, J seasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.forecasting.signature import SeriesSizes
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn
MAX_SEASONS = 8
"""Largest number of seasons whose values enter the prediction of a step directly."""
MAX_EMBEDDING = 32
LEAST_DEVIATION = 1e-6
"""A window whose deviation is smaller than this share of its mean absolute value counts as constant: the rest is
rounding."""


class Scaled(NamedTuple):
    """A window in its own scale.

    Attributes:
        value_BP: scaled values, 0 where unknown.
        centre_B1, scale_B1: value = centre + scale * scaled value.
    """

    value_BP: Any
    centre_B1: Any
    scale_B1: Any


def scale_window(F: OperatorModule, value_BP: Array, observed_BP: Array, by_mean: bool) -> Scaled:
    """Scales the known values of each window.

    Args:
        F: mx.nd or mx.sym.
        value_BP: values, 0 where unknown.
        observed_BP: 1 for known values, otherwise 0.
        by_mean: True to divide by the mean absolute value; False to subtract the mean and divide by the deviation. The
            scale of a window of equal values is their size, or 1.
    """
    count_B1 = F.sum(observed_BP, axis=1, keepdims=True)
    count_B1 = count_B1 + (count_B1 <= 0)
    size_B1 = F.broadcast_div(F.sum(F.abs(value_BP) * observed_BP, axis=1, keepdims=True), count_B1)
    size_or_1_B1 = size_B1 + (size_B1 <= 0)
    if by_mean:
        return Scaled(F.broadcast_div(value_BP, size_or_1_B1), F.zeros_like(size_B1), size_or_1_B1)
    centre_B1 = F.broadcast_div(F.sum(value_BP * observed_BP, axis=1, keepdims=True), count_B1)
    # Relative to the size, because the squares of values above 1e19 do not fit into float32.
    difference_BP = F.broadcast_div(F.broadcast_sub(value_BP, centre_B1) * observed_BP, size_or_1_B1)
    variance_B1 = F.broadcast_div(F.sum(F.square(difference_BP), axis=1, keepdims=True), count_B1)
    deviation_B1 = F.sqrt(variance_B1)
    deviation_B1 = deviation_B1 + (deviation_B1 <= LEAST_DEVIATION)
    return Scaled(F.broadcast_div(difference_BP, deviation_B1), centre_B1, deviation_B1 * size_or_1_B1)


class ItemFacts(gluon.HybridBlock):
    """Joins the numbers of an item and the embeddings of its categories: (B, S) and (B, N) -> (B, E)."""

    def __init__(self, sizes: SeriesSizes, **kwargs: Any):
        super().__init__(**kwargs)
        self._has_numbers = sizes.num_static > 0
        self._embeddings: List[gluon.Block] = []
        with self.name_scope():
            for number, size in enumerate(sizes.category_sizes):
                embedding = nn.Embedding(size, embedding_width(size), weight_initializer="normal")
                setattr(self, f"embedding{number}", embedding)
                self._embeddings.append(embedding)

    def hybrid_forward(self, F: OperatorModule, *facts: Array) -> Array:
        parts = list(facts[:1] if self._has_numbers else ())
        for number, embedding in enumerate(self._embeddings):
            id_B1 = F.slice_axis(facts[-1], axis=1, begin=number, end=number + 1)
            parts.append(F.flatten(embedding(id_B1)))
        return F.concat(*parts, dim=1) if len(parts) > 1 else parts[0]


def embedding_width(size: int) -> int:
    """Returns the width of the embedding of a category with this number of ids."""
    return min(MAX_EMBEDDING, (size + 1) // 2)


def item_width(sizes: SeriesSizes) -> int:
    """Returns E, the width of the facts of an item."""
    return sizes.num_static + sum(map(embedding_width, sizes.category_sizes))


def build_item_facts(sizes: SeriesSizes) -> Optional[ItemFacts]:
    """Returns the block for the facts of an item; None if there are none."""
    return ItemFacts(sizes) if sizes.num_static or sizes.category_sizes else None


class DilatedBlock(gluon.HybridBlock):
    """A residual block of a causal convolution: (B, U, P) -> (B, U, P).

    Args:
        units: U.
        kernel: width of the convolution.
        dilation: distance of its taps.
        dropout: dropout probability.
    """

    def __init__(self, units: int, kernel: int, dilation: int, dropout: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._padding = dilation * (kernel - 1)
        with self.name_scope():
            self.convolution = nn.Conv1D(units, kernel, dilation=dilation, padding=self._padding, in_channels=units)
            self.output = nn.Conv1D(units, 1, in_channels=units)
            self.dropout = nn.Dropout(dropout)

    def hybrid_forward(self, F: OperatorModule, array_BUP: Array) -> Array:
        found_BUP = self.convolution(array_BUP)
        if self._padding:
            # Padded on both sides, so the last outputs have seen later steps.
            found_BUP = F.slice_axis(found_BUP, axis=2, begin=0, end=-self._padding)
        found_BUP = F.Activation(found_BUP, act_type="relu")
        return array_BUP + self.output(self.dropout(found_BUP))


class ConvolutionSettings(NamedTuple):
    """Settings of `QuantileConvolutions`.

    Attributes:
        units: channels of the convolutions.
        kernel: width of the convolutions.
        num_layers: number of blocks, with dilations 1, 2, 4, ...
        dropout: dropout probability.
        by_mean: see `scale_window`.
    """

    units: int
    kernel: int
    num_layers: int
    dropout: float
    by_mean: bool


class QuantileConvolutions(gluon.HybridBlock):
    """Causal convolutions over the past, and for each step to predict two layers on their last output, the facts of the
    step, and the values of the same place in the last seasons. The outputs are added to the value one season before.

    Sources: Bai, Kolter, Koltun, "An Empirical Evaluation of Generic Convolutional and Recurrent Networks for Sequence
    Modeling" (2018); Wen et al., "A Multi-Horizon Quantile Recurrent Forecaster" (2017), for the quantiles of all steps
    at once.

    Args:
        num_quantiles: Q.
        sizes: sizes of the inputs.
        settings: widths and depth.
    """

    def __init__(self, num_quantiles: int, sizes: SeriesSizes, settings: ConvolutionSettings, **kwargs: Any):
        super().__init__(**kwargs)
        self._sizes, self._by_mean, self._num_quantiles = sizes, settings.by_mean, num_quantiles
        season = min(sizes.season, sizes.past)
        self._seasons = [(season, number) for number in range(1, min(sizes.past // season, MAX_SEASONS) + 1)]
        with self.name_scope():
            self.items = build_item_facts(sizes)
            self.item_bias: Any = None
            if self.items is not None:
                self.item_bias = nn.Dense(settings.units, in_units=item_width(sizes))
            self.input = nn.Conv1D(settings.units, 1, in_channels=2 + sizes.num_known)
            self.blocks = nn.HybridSequential()
            for layer in range(settings.num_layers):
                self.blocks.add(DilatedBlock(settings.units, settings.kernel, 2**layer, settings.dropout))
            self.steps = nn.Dense(sizes.horizon * settings.units, in_units=settings.units)
            self.hidden = nn.Dense(
                2 * settings.units,
                activation="relu",
                flatten=False,
                in_units=settings.units + sizes.num_known + len(self._seasons),
            )
            self.output = nn.Dense(num_quantiles, flatten=False, in_units=2 * settings.units)

    def hybrid_forward(
        self, F: OperatorModule, value_BP: Array, observed_BP: Array, known_BFK: Array, *facts: Array
    ) -> Tuple[Array, Array]:
        past, horizon = self._sizes.past, self._sizes.horizon
        scaled_BP, centre_B1, scale_B1 = scale_window(F, value_BP, observed_BP, self._by_mean)
        past_BKP = F.transpose(F.slice_axis(known_BFK, axis=1, begin=0, end=past), axes=(0, 2, 1))
        rows = [F.expand_dims(array, axis=1) for array in (scaled_BP, observed_BP)]
        array_BUP = self.input(F.concat(*rows, past_BKP, dim=1))
        if self.items is not None:
            array_BUP = F.broadcast_add(array_BUP, F.expand_dims(self.item_bias(self.items(*facts)), axis=2))
        last_BU1 = F.slice_axis(self.blocks(array_BUP), axis=2, begin=past - 1, end=past)
        step_BHU = F.reshape(self.steps(F.flatten(last_BU1)), shape=(0, horizon, -1))
        future_BHK = F.slice_axis(known_BFK, axis=1, begin=past, end=past + horizon)
        season_BHJ = F.concat(*[self._season(F, scaled_BP, *each) for each in self._seasons], dim=2)
        hidden_BHU = self.hidden(F.concat(step_BHU, future_BHK, season_BHJ, dim=2))
        quantile_BHQ = ascending(F, self.output(hidden_BHU), self._num_quantiles)
        # Differences from the last season are small, so that the first forecasts are already seasonal naive ones.
        quantile_BHQ = F.broadcast_add(quantile_BHQ, F.slice_axis(season_BHJ, axis=2, begin=0, end=1))
        quantile_BHQ = F.broadcast_mul(quantile_BHQ, F.expand_dims(scale_B1, axis=2))
        return F.broadcast_add(quantile_BHQ, F.expand_dims(centre_B1, axis=2)), scale_B1

    def _season(self, F: OperatorModule, scaled_BP: Array, season: int, number: int) -> Array:
        """Returns the value of the same place in the season `number` seasons before, for each step, (B, H, 1)."""
        end = self._sizes.past - (number - 1) * season
        season_BS = F.slice_axis(scaled_BP, axis=1, begin=end - season, end=end)
        horizon = self._sizes.horizon
        repeated = [season_BS] * -(-horizon // season)
        value_BH = F.concat(*repeated, dim=1) if len(repeated) > 1 else season_BS
        return F.expand_dims(F.slice_axis(value_BH, axis=1, begin=0, end=horizon), axis=2)


def ascending(F: OperatorModule, raw_BHQ: Array, count: int) -> Array:
    """Converts free outputs to ascending ones: the first one, then positive differences."""
    parts: List[Any] = [F.slice_axis(raw_BHQ, axis=2, begin=0, end=1) - 0.5]
    for number in range(1, count):
        # Offsets of -0.5 and -2 begin with quantiles of nine levels from -0.5 to 0.5 deviations.
        free_BH1 = F.slice_axis(raw_BHQ, axis=2, begin=number, end=number + 1) - 2.0
        parts.append(parts[-1] + F.Activation(free_BH1, act_type="softrelu"))
    return F.concat(*parts, dim=2) if count > 1 else parts[0]


def layers_for(past: int, kernel: int) -> int:
    """Returns the number of blocks with dilations 1, 2, 4, ... whose last output sees all past steps."""
    layers, seen = 1, kernel
    while seen < past:
        seen += 2**layers * (kernel - 1)
        layers += 1
    return layers
