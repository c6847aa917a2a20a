"""Regression task: predicts numbers for each sample, with quantiles and intervals.

Legend: B batch, N samples, T targets, Q quantiles, P numbers of a prediction.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

import pydantic

from mxtrain.data.loading.number_targets import target_column_of
from mxtrain.data.loading.samples import Source, TextPairs
from mxtrain.data.number_rows import number_row
from mxtrain.data.sample_weights import has_weights
from mxtrain.errors import ConfigError, DamagedCheckpoint
from mxtrain.loss.quantile import QuantileLoss
from mxtrain.metric.of_targets import IntervalCoverage, IntervalWidth, Margins, TargetLayout, metric_of_targets
from mxtrain.task.merging import merge_values
from mxtrain.task.own_loss import validate_loss_output
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.regression_display import RegressionFormat, draw_numbers, is_image, shown_targets
from mxtrain.task.spec import Report
from mxtrain.task.targets_report import ScatterReport, TargetsReport
from mxtrain.task.task_export import TaskExport
from mxtrain.task.threshold import MARGINS, ChoosingTask
from mxtrain.types import Artifact, Figure, ProperFraction, Stateful, Table
from mxtrain.types.kinds import Number, Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.passes import Variant
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.metric.spec import Metric
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.merging import MergeOutputs
    from mxtrain.types import Batch
    from mxtrain.types.annotations import Json, JsonObject, LossBlock

log = logging.getLogger(__name__)


class Regression(ChoosingTask):
    """Regression: one output (B, 1) and targets (B,), several targets (B, T) with outputs (B, T), or quantiles of each
    with outputs (B, T * Q).

    The network and the loss see targets that are standardised by mean and deviation of the training samples, stored in
    the signature. Metrics and predictions are in the unit of the targets.
    """

    name: ClassVar[str] = "regression"
    takes: ClassVar[Takes] = Takes(Number)
    distils: ClassVar[str] = "values"

    quantiles: List[ProperFraction] = []
    """Levels of the quantiles that are predicted with loss=quantile, ascending; 0.5 is one of them, and the value that
    is predicted. The lowest and the highest are the bounds of an interval."""
    interval: Optional[ProperFraction] = None
    """Share of the targets that intervals contain: the interval of the quantiles, or the value alone, is widened by a
    margin that validations choose and checkpoints keep (split-conformal prediction). null = no margin."""

    _keeper: Margins = pydantic.PrivateAttr(default_factory=Margins)
    _restored: Optional[List[float]] = pydantic.PrivateAttr(None)

    @pydantic.model_validator(mode="after")
    def _check_quantiles(self) -> Regression:
        levels = self.quantiles
        if levels and (sorted(set(levels)) != levels or 0.5 not in levels):
            raise ValueError(f"quantiles={levels}: they must be different and ascending, with 0.5 among them")
        if len(levels) > 1 and levels.index(0.5) != len(levels) // 2:
            raise ValueError(f"quantiles={levels}: as many must be below 0.5 as above it")
        return self

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss = description.loss
        loss.require_unsmoothed("task=regression has no classes to smooth over")
        if description.dataset.mixes:
            raise ConfigError(
                "dataset.augment mixes samples, which task=regression cannot. Switch mixup and cutmix off."
            )
        if isinstance(loss, QuantileLoss) and not self.quantiles:
            raise ConfigError("loss=quantile learns quantiles. Type task.quantiles=[0.05,0.5,0.95].")
        if self.quantiles and not isinstance(loss, QuantileLoss):
            raise ConfigError("task.quantiles are learned by another loss. Type loss=quantile.")
        if self.quantiles and description.distillation.teacher is not None:
            raise ConfigError("distillation.teacher: quantiles cannot be distilled. Leave one of them out.")

    @property
    def has_intervals(self) -> bool:
        """Returns True if an interval is predicted for each value."""
        return self.interval is not None or len(self.quantiles) > 1

    def restored(self, states: JsonObject) -> Regression:
        """Returns the task with the margins of a checkpoint."""
        if self.interval is None:
            return self
        values = states.get(MARGINS, {}).get("values", [])
        if not isinstance(values, list) or not all(type(one) is float and math.isfinite(one) for one in values):
            raise DamagedCheckpoint(f"The checkpoint cannot be used: its margins are {str(values)[:60]}.")
        if not values:
            log.warning(
                "The checkpoint has no margins of intervals, as before the first validation: task.interval=%g is left "
                "out.",
                self.interval,
            )
            return self.model_copy(update={"interval": None})
        task = self.model_copy()
        task._restored = values
        return task

    @property
    def choices(self) -> Mapping[str, Stateful]:
        return {} if self.interval is None else {MARGINS: self._keeper}

    def layout(self, signature: Signature) -> TargetLayout:
        """Returns the layout of the outputs."""
        if not signature.targets:
            return TargetLayout([""], [(signature.target_mean, signature.target_std)], self.quantiles)
        scales = [(target.mean, target.std) for target in signature.targets]
        return TargetLayout([target.name for target in signature.targets], scales, self.quantiles)

    def is_plain(self, signature: Signature) -> bool:
        """Returns True if there is one target without quantiles and intervals."""
        return not (signature.targets or self.quantiles or self.has_intervals)

    def margins(self, signature: Signature) -> Optional[List[float]]:
        """Returns what is added to each side of the interval of each target; 0 while validations choose it, None
        without intervals."""
        if not self.has_intervals:
            return None
        count = len(self.layout(signature).names)
        values = self._restored or [0.0] * count
        if len(values) != count:
            raise DamagedCheckpoint(
                f"The checkpoint cannot be used: it has margins of {len(values)} targets, and there are {count}."
            )
        return values

    def num_classes(self, signature: Signature) -> int:
        layout = self.layout(signature)
        return len(layout.names) * layout.width

    def output_names(self, signature: Signature) -> Sequence[str]:
        layout = self.layout(signature)
        if not signature.targets and not layout.levels:
            return super().output_names(signature)
        suffixes = [f"quantile {level:g}" for level in layout.levels] or [""]
        return [f"{name} {suffix}".strip() for name in layout.names for suffix in suffixes]

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        from mxtrain.loss.blocks import RegressionLoss, TargetsLoss

        if not signature.targets and not self.quantiles:
            block = RegressionLoss(description.loss.block(), signature.target_mean, signature.target_std)
            return validate_loss_output(block, description, [(1,)])
        layout = self.layout(signature)
        if signature.targets and description.distillation.teacher is not None:
            raise ConfigError("distillation.teacher: several targets cannot be distilled. Name one in dataset.target.")
        if isinstance(description.loss, QuantileLoss):
            return TargetsLoss(description.loss.build_quantiles(len(layout.names), layout.levels), layout.scales)
        several = TargetsLoss(description.loss.block(), layout.scales)
        return validate_loss_output(several, description, [(len(layout.names),)], (len(layout.names),))

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        if self.is_plain(signature):
            return super().build_meter(description, signature, weights, training)
        from mxtrain.metric.meter import Meter

        metrics = self._metrics(description, signature, with_targets=not training)
        return Meter(metrics, self.num_classes(signature), weights, training=training)

    def metrics(self, description: RunParts, signature: Signature) -> Mapping[str, Metric]:
        """Returns the metrics, of several targets the mean and as NAME/TARGET that of each, and those of intervals."""
        if self.is_plain(signature):
            return description.metric
        return self._metrics(description, signature, with_targets=True)

    def _metrics(self, description: RunParts, signature: Signature, with_targets: bool) -> Dict[str, Metric]:
        layout = self.layout(signature)
        chosen: Dict[str, Sequence[int]] = {"": range(len(layout.names))}
        if signature.targets and with_targets:
            chosen.update({f"/{name}": [number] for number, name in enumerate(layout.names)})
        found = {
            f"{name}{suffix}": metric_of_targets(metric, layout, numbers)
            for name, metric in description.metric.items()
            for suffix, numbers in chosen.items()
        }
        if self.has_intervals:
            level = self.interval if self._restored is None else None
            for suffix, numbers in chosen.items():
                keeper = self._keeper if level is not None and not suffix else None
                found[f"interval_coverage{suffix}"] = IntervalCoverage.of(numbers, level, keeper)
                found[f"interval_width{suffix}"] = IntervalWidth.of(numbers, level)
        return found

    def output_scale(self, signature: Signature) -> Tuple[float, float]:
        return signature.target_mean, signature.target_std

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        """Returns the function that decodes predictions in the unit of the targets: (B,), or with several targets,
        quantiles or intervals (B, T, P) as `number_rows.numbers_of`."""
        if not self.is_plain(signature):
            return self._build_decode_of_targets(signature)

        def decode(outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
            # Not a layer of the network: in float16, targets such as 300,000 would be infinite.
            return self.decode(outputs, batch) * signature.target_std + signature.target_mean

        return decode if signature.scales_targets else self.decode

    def _build_decode_of_targets(self, signature: Signature) -> Decode:
        from mxtrain.engine.backend import nd

        layout, margins = self.layout(signature), self.margins(signature)

        def decode(outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
            output_BM, of_targets = outputs[0].astype("float32"), []
            for number, (mean, std) in enumerate(layout.scales):
                begin = number * layout.width
                quantile_BQ = output_BM[:, begin : begin + layout.width]
                if layout.width > 1:
                    quantile_BQ = nd.sort(quantile_BQ, axis=1)
                quantile_BQ = quantile_BQ * std + mean
                parts = [layout.point(nd, output_BM, number), *([quantile_BQ] if layout.levels else [])]
                if margins is not None:
                    parts += [quantile_BQ[:, :1] - margins[number], quantile_BQ[:, -1:] + margins[number]]
                of_targets.append(nd.concat(*parts, dim=1).expand_dims(1))
            return nd.concat(*of_targets, dim=1)

        return decode

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the standardised predictions of the network, (B,)."""
        return outputs[0].astype("float32").reshape((-1,))

    def merge_variants(self, description: RunParts, signature: Signature, variants: Sequence[Variant]) -> MergeOutputs:
        """Returns the function that averages predicted numbers; see `MergesVariants`."""
        return merge_values

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        if self.is_plain(signature):
            return {"value": round(float(prediction), 6)}
        names = [target.name for target in signature.targets]
        return number_row(names, prediction, self.quantiles, self.has_intervals)

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the true and the predicted number, in the unit of the target, and the bounds of intervals."""
        import numpy as np

        if self.is_plain(signature):
            return {"true": float(sample.targets[0]), "predicted": float(sample.prediction)}
        cells: Dict[str, Json] = {}
        true_T = np.ravel(sample.targets[0]).tolist()
        for name, true, number_P in zip(self.layout(signature).names, true_T, sample.prediction.tolist()):
            suffix = f"_{name}" if name else ""
            cells.update({f"true{suffix}": true, f"predicted{suffix}": number_P[0]})
            if self.has_intervals:
                cells.update({f"low{suffix}": number_P[-2], f"high{suffix}": number_P[-1]})
        return cells

    def prediction_format(self) -> PredictionFormat:
        return RegressionFormat(self)

    def export_form(self) -> TaskExport:
        return RegressionExport(self)

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Any, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        from mxtrain.task.classification import texts_of

        if isinstance(source, Source) and is_image(signature.shape):
            # Of each target only the value, which is the first of its numbers.
            values = [prediction.reshape(len(self.layout(signature).names), -1)[:, 0] for prediction in predictions]
            return [Figure("samples", functools.partial(draw_numbers, source, values, targets[0]))]
        names = texts_of(source) if isinstance(source, TextPairs) else [str(number) for number in range(len(source))]
        if not self.is_plain(signature):
            return [shown_targets(self.layout(signature).names, self.has_intervals, names, predictions, targets[0])]
        rows = [
            [name, f"{target:.4g}", f"{prediction:.4g}"]
            for name, target, prediction in zip(names, targets[0], predictions)
        ]
        return [Table("samples", ["sample", "target", "predicted"], rows)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        if not self.is_plain(signature):
            decode, layout = self.build_decode(description, signature), self.layout(signature)
            dataset = description.dataset
            column = target_column_of(dataset)
            return TargetsReport(decode, layout, self.has_intervals, has_weights(dataset), column)
        return ScatterReport(self.build_decode(description, signature), signature, has_weights(description.dataset))


class RegressionExport(TaskExport):
    """Export of networks of `Regression`."""

    task: Regression

    def facts(self, description: RunParts, signature: Signature, strategy: Strategy) -> Dict[str, Json]:
        margins = self.task.margins(signature)
        facts = super().facts(description, signature, strategy)
        return facts if margins is None else {**facts, MARGINS: margins}
