"""Forecasting models: temporal convolution and N-BEATS with quantiles, and DeepAR."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Literal, Optional, Tuple

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.forecasting.model import ForecastModel
from mxtrain.forecasting.sampled_paths import NEGATIVE_BINOMIAL, NUM_RAW, lags_of
from mxtrain.types import OpenFraction, Positive

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.forecasting.signature import SeriesSizes


class TemporalConvolution(ForecastModel):
    """Dilated causal convolutions over the past, which predict quantiles of all steps at once.

    Source: Bai, Kolter, Koltun, "An Empirical Evaluation of Generic Convolutional and Recurrent Networks for Sequence
    Modeling" (2018), https://arxiv.org/abs/1803.01271.
    """

    loss_option: ClassVar[str] = "quantile"

    units: Positive = 32
    """Channels of the convolutions."""
    kernel: Annotated[int, pydantic.Field(ge=2, le=64)] = 3
    """Width of the convolutions."""
    num_layers: Optional[Annotated[int, pydantic.Field(ge=1, le=16)]] = None
    """Number of blocks, with dilations 1, 2, 4, ...; null = as many as see the whole context."""
    dropout: OpenFraction = 0.0
    """Dropout probability within each block."""
    scaling: Literal["std", "mean"] = "std"
    """Scale of the values of a window: std = their mean is 0 and their deviation 1; mean = their mean absolute value is
    1."""

    def build_quantiles(self, num_quantiles: int, sizes: SeriesSizes) -> gluon.HybridBlock:
        """See `ForecastModel.build_quantiles`."""
        from mxtrain.forecasting.networks import ConvolutionSettings, QuantileConvolutions, layers_for

        num_layers = self.num_layers or layers_for(sizes.past, self.kernel)
        settings = ConvolutionSettings(self.units, self.kernel, num_layers, self.dropout, self.scaling == "mean")
        return QuantileConvolutions(num_quantiles, sizes, settings, prefix="")


class NBeats(ForecastModel):
    """Blocks of dense layers, each of which explains a part of the past and forecasts quantiles with it.

    The last blocks combine the facts of steps: the calendar and covariates. Source: Oreshkin et al., "N-BEATS: Neural
    basis expansion analysis for interpretable time series forecasting" (2020), https://arxiv.org/abs/1905.10437.
    """

    loss_option: ClassVar[str] = "quantile"

    stacks: Literal["generic", "interpretable"] = "generic"
    """generic = two stacks of free outputs; interpretable = a stack of polynomials (trend) and one of cosines and sines
    of the season."""
    num_blocks: Annotated[int, pydantic.Field(ge=1, le=32)] = 3
    """Number of blocks of a stack; they do not share weights."""
    num_layers: Annotated[int, pydantic.Field(ge=1, le=16)] = 4
    """Number of dense layers of a block."""
    units: Positive = 128
    """Units of a dense layer."""
    degree: Annotated[int, pydantic.Field(ge=0, le=8)] = 3
    """Degree of the polynomials, for stacks=interpretable."""
    scaling: Literal["std", "mean"] = "std"
    """Scale of the values of a window: std = their mean is 0 and their deviation 1; mean = their mean absolute value is
    1."""

    def build_quantiles(self, num_quantiles: int, sizes: SeriesSizes) -> gluon.HybridBlock:
        """See `ForecastModel.build_quantiles`."""
        from mxtrain.forecasting.n_beats import COVARIATES, GENERIC, SEASONALITY, TREND, NBeatsNetwork, NBeatsSettings

        stacks = [GENERIC, GENERIC] if self.stacks == "generic" else [TREND, SEASONALITY]
        settings = NBeatsSettings(
            [*stacks, COVARIATES], self.num_blocks, self.num_layers, self.units, self.degree, self.scaling == "mean"
        )
        return NBeatsNetwork(num_quantiles, sizes, settings, prefix="")


class DeepAR(ForecastModel):
    """Autoregressive LSTM layers, which predict a distribution of each next value. Forecasts are quantiles of sampled
    paths.

    Source: Salinas et al., "DeepAR: Probabilistic Forecasting with Autoregressive Recurrent Networks" (2017),
    https://arxiv.org/abs/1704.04110.
    """

    outputs: ClassVar[Literal["quantiles", "likelihood"]] = "likelihood"
    loss_option: ClassVar[str] = "likelihood"

    units: Positive = 40
    """Units of a layer."""
    num_layers: Annotated[int, pydantic.Field(ge=1, le=16)] = 2
    """Number of LSTM layers."""
    dropout: OpenFraction = 0.1
    """Dropout probability between layers, as in GluonTS."""
    distribution: Literal["student_t", "gaussian", "negative_binomial"] = "student_t"
    """Distribution of a value; negative_binomial is for counts."""
    num_paths: Annotated[int, pydantic.Field(ge=1, le=10000)] = 100
    """Number of paths that are sampled for the quantiles of a forecast."""
    sampling_seed: int = 0
    """Seed of the sampled paths."""

    def past_steps(self, context: int, season: int) -> int:
        """See `ForecastModel.past_steps`: the first step that is unrolled has its largest lag before it."""
        return context + lags_of(season)[-1]

    def unfit_values(self, value_T: np.ndarray) -> str:
        """See `ForecastModel.unfit_values`: counts are whole numbers from 0."""
        if self.distribution != NEGATIVE_BINOMIAL:
            return ""
        wrong_T = value_T[~(np.isnan(value_T) | ((value_T >= 0) & (value_T == np.floor(value_T))))]
        return (
            f"model.distribution=negative_binomial is for counts, and a value is {wrong_T[0]:g}" if len(wrong_T) else ""
        )

    def output_shapes(self, num_quantiles: int, sizes: SeriesSizes) -> List[Tuple[int, ...]]:
        """See `ForecastModel.output_shapes`."""
        context = sizes.past - lags_of(sizes.season)[-1]
        return [(context + sizes.horizon, NUM_RAW[self.distribution]), (1,), (context,), (context,)]

    def build_quantiles(self, num_quantiles: int, sizes: SeriesSizes) -> gluon.HybridBlock:
        """Returns the network, uninitialized; see `DeepARNetwork`."""
        from mxtrain.forecasting.recurrent import DeepARNetwork, RecurrentSettings

        settings = RecurrentSettings(self.units, self.num_layers, self.dropout, self.distribution)
        return DeepARNetwork(sizes, settings, prefix="")
