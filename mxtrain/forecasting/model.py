"""Base class of models for forecasting."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Literal, Tuple

from mxtrain.forecasting.kinds import FutureValues, SeriesPasts
from mxtrain.model.spec import Model, missing_method
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

    from mxtrain.forecasting.signature import SeriesSizes


class ForecastModel(Model):
    """Base of networks of windows of series.

    The network takes values (B, P), flags of known values (B, P), facts of past and future steps (B, P + H, K), and
    where items have them numbers (B, S) and ids (B, N) int32. It scales the values itself.
    """

    takes: ClassVar[Takes] = Takes(SeriesPasts, FutureValues)
    outputs: ClassVar[Literal["quantiles", "likelihood"]] = "quantiles"
    """Content of the first output: quantiles (B, H, Q), or parameters of a distribution."""

    def past_steps(self, context: int, season: int) -> int:
        """Returns P, the steps that the network needs before the cut.

        Args:
            context: number of steps that the description asks for.
            season: steps after which values repeat.
        """
        return context

    def unfit_values(self, value_T: np.ndarray) -> str:
        """Returns the reason why a series cannot be predicted, as a clause; empty if it can.

        Args:
            value_T: its values; NaN = missing.
        """
        return ""

    def output_shapes(self, num_quantiles: int, sizes: SeriesSizes) -> List[Tuple[int, ...]]:
        """Returns the shape of each output for one sample."""
        return [(sizes.horizon, num_quantiles), (1,)]

    def build_quantiles(self, num_quantiles: int, sizes: SeriesSizes) -> gluon.Block:
        """Returns the network, uninitialized: its outputs are quantiles (B, H, Q), ascending, in the unit of the
        values, and the scale of each window (B, 1).

        Args:
            num_quantiles: Q.
            sizes: sizes of the inputs.
        """
        raise missing_method(self, "build_quantiles")


def build_forecaster(model: Model, num_quantiles: int, sizes: SeriesSizes) -> gluon.Block:
    """Returns the network of any model for windows of series; see `ForecastModel.build_quantiles`."""
    if isinstance(model, ForecastModel):
        return model.build_quantiles(num_quantiles, sizes)
    known = sizes._asdict()
    known["category_sizes"] = list(sizes.category_sizes)
    return model.build_filled(num_quantiles, **known)
