"""Forecasting task: predicts the next values of a series, with quantiles.

Legend: B batch, H steps to predict, Q quantiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.errors import ConfigError
from mxtrain.forecasting.dataset import ALL
from mxtrain.forecasting.forecasters import DeepAR
from mxtrain.forecasting.kinds import FutureValues, SeriesPasts
from mxtrain.forecasting.losses import ForecastLoss
from mxtrain.forecasting.metrics import Coverage, ForecastMetric, WeightedQuantileLoss
from mxtrain.forecasting.model import ForecastModel
from mxtrain.forecasting.path_sampler import path_settings
from mxtrain.forecasting.quantile_rows import forecast_columns, forecast_row, mean_weights
from mxtrain.forecasting.sampled_paths import forecast_with_parts
from mxtrain.forecasting.signature import SeriesSignature
from mxtrain.task.needs import FULL_PRECISION
from mxtrain.task.own_loss import validate_loss_output
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report, Task
from mxtrain.task.task_export import TaskExport
from mxtrain.types import Artifact, Figure, ProperFraction
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.forecasting.source import ForecastSamples
    from mxtrain.metric.spec import Metric
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.exported_part import ExportedPart
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, JsonObject, LossBlock


class Forecasting(Task):
    """Forecasts of series.

    Outputs are quantiles (B, H, Q) in the unit of the values, and the scale of each window (B, 1); targets are the
    values (B, H), 0 where unknown, and flags of known ones (B, H). Predictions are the mean and the quantiles of each
    step, (B, H, 1 + Q).
    """

    name: ClassVar[str] = "forecasting"
    takes: ClassVar[Takes] = Takes(SeriesPasts, FutureValues)
    needs: ClassVar[Tuple[str, ...]] = (FULL_PRECISION,)

    quantiles: Annotated[List[ProperFraction], pydantic.Field(min_length=1)] = [
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
        0.9,
    ]
    """Levels of the quantiles that are predicted, ascending; 0.5 is one of them."""
    baselines: bool = True
    """If true, `eval` also measures seasonal naive and Holt-Winters on the same windows."""

    @pydantic.model_validator(mode="after")
    def _check_quantiles(self) -> Forecasting:
        if sorted(set(self.quantiles)) != self.quantiles or 0.5 not in self.quantiles:
            raise ValueError(f"quantiles={self.quantiles}: they must be different and ascending, with 0.5 among them")
        return self

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss, model = description.loss, description.model
        loss.require_unsmoothed("task=forecasting has no classes to smooth over")
        if isinstance(loss, ForecastLoss) and isinstance(model, ForecastModel) and loss.reads != model.outputs:
            raise ConfigError(
                f"loss: {type(loss).__name__} compares {loss.reads}, and {type(model).__name__} predicts "
                f"{model.outputs}. Type loss={model.loss_option}."
            )
        for name, metric in description.metric.items():
            if isinstance(metric, (WeightedQuantileLoss, Coverage)) and metric.level not in self.quantiles:
                raise ConfigError(
                    f"metric.{name}.level={metric.level:g}: it must be one of task.quantiles, "
                    f"{', '.join(f'{level:g}' for level in self.quantiles)}."
                )

    def num_classes(self, signature: Signature) -> int:
        return len(self.quantiles)

    def output_names(self, signature: Signature) -> Sequence[str]:
        return ()

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        sizes = SeriesSignature.cast(signature).sizes
        if isinstance(description.model, ForecastModel):
            return description.model.output_shapes(len(self.quantiles), sizes)
        return [(sizes.horizon, len(self.quantiles)), (1,)]

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        if isinstance(description.loss, ForecastLoss):
            return description.loss.build_for(self.quantiles, description.model)
        loss = description.loss.build(len(self.quantiles), training)
        return validate_loss_output(loss, description, self.output_shapes(description, signature))

    def metrics(self, description: RunParts, signature: Signature) -> Mapping[str, Metric]:
        return {
            name: metric.with_levels(self.quantiles) if isinstance(metric, ForecastMetric) else metric
            for name, metric in description.metric.items()
        }

    def metric_signatures(self, description: RunParts, signature: Signature) -> Mapping[str, str]:
        """Adds the levels and the season to the signatures of metrics that depend on them."""
        levels = ":".join(f"{level:g}" for level in self.quantiles)
        season = SeriesSignature.cast(signature).season
        further = {"CRPS": f"levels={levels}", "MASE": f"season={season}"}
        return {
            name: further.get(type(description.metric[name]).__name__, text)
            for name, text in super().metric_signatures(description, signature).items()
        }

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        if not isinstance(description.model, DeepAR):
            return self.decode
        from mxtrain.forecasting.path_sampler import PathSampler

        assert strategy is not None
        return PathSampler(description.model, SeriesSignature.cast(signature), strategy, self.quantiles)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns mean and quantiles of each step, (B, H, 1 + Q)."""
        from mxtrain.engine.backend import nd

        quantile_BHQ = nd.sort(outputs[0].astype("float32"), axis=2)
        weight_Q = nd.array(mean_weights(self.quantiles), ctx=quantile_BHQ.context)
        mean_BH1 = (quantile_BHQ * weight_Q.reshape((1, 1, -1))).sum(axis=2, keepdims=True)
        return nd.concat(mean_BH1, quantile_BHQ, dim=2)

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the mean and each quantile of all steps."""
        names = forecast_columns(self.quantiles)
        return {name: [round(float(value), 6) for value in prediction[:, column]] for column, name in enumerate(names)}

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the item, the first time after the cut, and the means of true and predicted values."""
        windows: ForecastSamples = source  # type: ignore[assignment]  # of its own samples
        value_H, observed_H = (np.asarray(target, np.float64) for target in sample.targets[:2])
        known = observed_H > 0
        return {
            "item": windows.name_of(sample.index),
            "from": windows.times_of(sample.index, 1)[0],
            "true": float(value_H[known].mean()) if known.any() else None,
            "predicted": float(sample.prediction[known, 0].mean()) if known.any() else None,
        }

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        """Returns a figure of forecasts with bands."""
        from mxtrain.forecasting.report import DrawnForecast, draw_forecasts, past_steps

        windows: ForecastSamples = source  # type: ignore[assignment]  # of its own samples
        horizon = SeriesSignature.cast(signature).window.horizon
        drawn = [
            DrawnForecast(
                windows.name_of(number),
                windows.past_of(number)[-past_steps(windows.season, horizon) :],
                windows.future_of(number, horizon),
                prediction[:, 0],
                prediction[:, 1:],
            )
            for number, prediction in enumerate(predictions)
        ]
        return [Figure("forecasts", lambda max_samples: draw_forecasts(drawn[:max_samples], self.quantiles, ""))]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.forecasting.report import ForecastReport

        horizon = SeriesSignature.cast(signature).window.horizon
        return ForecastReport(source, self.quantiles, horizon, self.baselines)  # type: ignore[arg-type]  # own samples

    def export_form(self) -> TaskExport:
        return ForecastExport(self)

    def prediction_format(self) -> PredictionFormat:
        return ForecastFormat(self)


class ForecastExport(TaskExport):
    """Export of the networks of `Forecasting`."""

    task: Forecasting

    any_size: ClassVar[bool] = False

    def facts(self, description: RunParts, signature: Signature, strategy: Strategy) -> Dict[str, Json]:
        """Returns the settings of the task, and for sampled forecasts those of the paths."""
        facts = super().facts(description, signature, strategy)
        if isinstance(description.model, DeepAR):
            settings = path_settings(description.model, SeriesSignature.cast(signature), self.task.quantiles)
            facts["paths"] = settings._asdict()
        return facts

    def parts(
        self, description: RunParts, signature: Signature, strategy: Strategy, inputs: Sequence[np.ndarray]
    ) -> Mapping[str, ExportedPart]:
        """Returns the encoder of the past and the step with which exported folders sample paths."""
        if not isinstance(description.model, DeepAR):
            return {}
        from mxtrain.forecasting.path_parts import path_parts
        from mxtrain.forecasting.path_sampler import PathSampler

        sampler: Any = self.task.build_decode(description, signature, strategy)
        assert isinstance(sampler, PathSampler)
        network = sampler.network.current()
        return path_parts(network, inputs[:-2], network.input_width)

    def build_decode(
        self, description: RunParts, signature: Signature, strategy: Strategy, folder: ExportedFolder
    ) -> Decode:
        """See `TaskExport.build_decode`."""
        if not isinstance(description.model, DeepAR):
            return super().build_decode(description, signature, strategy, folder)
        settings = path_settings(description.model, SeriesSignature.cast(signature), self.task.quantiles)

        def decode(outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
            from mxtrain.engine.backend import nd

            arrays = [array.asnumpy() for array in batch.inputs[:-2]]
            return nd.array(forecast_with_parts(folder.run, arrays, settings))

        return decode


class ForecastFormat(PredictionFormat):
    """Rows of `predict`: one for each item and time."""

    task: Forecasting

    inputs: ClassVar[str] = ALL

    def rows(
        self, signature: Signature, source: Samples, predictions: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:
        windows: ForecastSamples = source  # type: ignore[assignment]  # of its own samples
        for number, prediction in predictions:
            name = windows.name_of(number)
            for time, value_C in zip(windows.times_of(number, len(prediction)), prediction):
                yield number, forecast_row(name, time, value_C, self.task.quantiles)

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns the columns of a row; the lists of `Forecasting.row` as one text."""
        return {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in row.items()}
