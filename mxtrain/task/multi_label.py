"""Multi-label classification: predicts any number of classes for each sample, of images, texts or rows of tables.

Legend: N samples, B batch, K classes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

import pydantic

from mxtrain.config.specs import refuse_unknown_names
from mxtrain.data.checking.checks import checks_of
from mxtrain.data.class_rows import class_set_row
from mxtrain.data.loading.samples import TextPairs
from mxtrain.data.sample_weights import has_weights
from mxtrain.errors import DamagedCheckpoint
from mxtrain.metric.multi_label import (
    USUAL_THRESHOLD,
    ChosenThresholds,
    ClassSetMetric,
    Threshold,
)
from mxtrain.task.classification import ranked_cells, texts_of
from mxtrain.task.merging import merge_class_set_scores
from mxtrain.task.own_loss import validate_loss_output
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report
from mxtrain.task.task_export import TaskExport
from mxtrain.task.threshold import THRESHOLDS, ThresholdTask
from mxtrain.types import Artifact, Batch, Figure, PositiveFloat, Stateful, Table
from mxtrain.types.kinds import Arrays, ClassSet, Numbers, Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.loading.loader import Collate
    from mxtrain.data.passes import Variant
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.metric.spec import Metric
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.explained import Explained
    from mxtrain.task.merging import MergeOutputs
    from mxtrain.types.annotations import Array, Json, JsonObject, LossBlock, OperatorModule

log = logging.getLogger(__name__)


class MultiLabel(ThresholdTask):
    """Scores (B, K) against the classes of samples (B, K): a class is predicted if the sigmoid of its score reaches the
    threshold of the class."""

    name: ClassVar[str] = "multi_label"
    takes: ClassVar[Takes] = Takes(ClassSet)

    threshold: Threshold = "chosen"
    """Least probability of a predicted class; chosen = of each class the one with the highest F1 on the validation
    split. Each validation of the training chooses anew, and checkpoints keep the thresholds; 0.5 without validation."""
    class_weights: Dict[str, PositiveFloat] = {}
    """Weight of classes in the loss, by name; the others have 1."""

    _keeper: ChosenThresholds = pydantic.PrivateAttr(default_factory=ChosenThresholds)
    _restored: Optional[List[float]] = pydantic.PrivateAttr(None)

    def check(self, description: RunParts) -> None:
        super().check(description)
        description.loss.require_unsmoothed("task=multi_label smooths no targets")

    def restored(self, states: JsonObject) -> MultiLabel:
        """Returns the task with the thresholds of a checkpoint."""
        values = states.get(THRESHOLDS, {}).get("values", [])
        if not isinstance(values, list) or not all(type(value) is float and 0 < value <= 1 for value in values):
            raise DamagedCheckpoint(f"The checkpoint cannot be used: its thresholds are {str(values)[:60]}.")
        if not values and self.threshold == "chosen":
            log.warning(
                "The checkpoint has no thresholds, as before the first validation: classes are predicted from the "
                "probability %g on. Another one: task.threshold=0.3.",
                USUAL_THRESHOLD,
            )
        task = self.model_copy()
        task._restored = values
        return task

    def with_threshold(self, threshold: float, signature: Signature) -> MultiLabel:
        task = self.model_copy(update={"threshold": threshold})
        task._restored = self._restored
        return task

    def thresholds(self, signature: Signature) -> List[float]:
        """Returns the threshold of each class: that of the setting, those of the checkpoint, or those chosen last."""
        count = self.num_classes(signature)
        if self.threshold != "chosen":
            return [self.threshold] * count
        # During training, those of the last validation.
        kept = self._keeper.values if self._restored is None else self._restored
        values = kept or [USUAL_THRESHOLD] * count
        if len(values) != count:
            raise DamagedCheckpoint(
                f"The checkpoint cannot be used: it has {len(values)} thresholds, and there are {count} classes."
            )
        return values

    @property
    def choices(self) -> Mapping[str, Stateful]:
        return {THRESHOLDS: self._keeper}

    def metrics(self, description: RunParts, signature: Signature) -> Mapping[str, Metric]:
        chosen = None if self._restored is None and self.threshold == "chosen" else self.thresholds(signature)
        return {
            name: metric.with_chosen(chosen, self._keeper) if isinstance(metric, ClassSetMetric) else metric
            for name, metric in description.metric.items()
        }

    def build_collate(self, description: RunParts, signature: Signature, training: bool) -> Optional[Collate]:
        """Returns the function that adds the weights of the classes as a second target, (B, K)."""
        names = list(signature.class_names)
        refuse_unknown_names("task.class_weights", "class", self.class_weights, names)
        if not self.class_weights:
            return None

        def collate(batch: Batch, epoch: int) -> Batch:
            if not batch.targets or batch.targets[0].ndim != 2:  # for predictions
                return batch
            import numpy as np

            weight_K = np.array([self.class_weights.get(name, 1.0) for name in names])
            target_BK, *more = batch.targets
            weight_BK = target_BK.zeros_like()
            weight_BK[:] = weight_K
            targets = (target_BK, weight_BK, *more)  # the weights of samples stay last
            return Batch(batch.inputs, targets, batch.size, batch.global_size, batch.index_B, batch.meta)

        return collate

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        loss = description.loss.build(self.num_classes(signature), training)
        loss.dense = True
        shapes = self.output_shapes(description, signature)
        return validate_loss_output(loss, description, shapes, (self.num_classes(signature),))

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the scores before the sigmoid, (B, K)."""
        return outputs[0].astype("float32")

    def merge_variants(self, description: RunParts, signature: Signature, variants: Sequence[Variant]) -> MergeOutputs:
        """Returns the function that averages probabilities; see `MergesVariants`."""
        return merge_class_set_scores

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the predicted classes, and the most probable ones with their probabilities."""
        from mxtrain.metric.binary import sigmoid

        return class_set_row(signature.class_names, sigmoid(prediction), self.thresholds(signature), top_k)

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the true and the predicted classes, and the text if the sample is one."""
        names = signature.class_names
        cells: Dict[str, Json] = {
            "true": joined_names(names, sample.targets[0] > 0),
            "predicted": joined_names(names, self.decide(signature, sample.prediction)),
        }
        if not isinstance(source, TextPairs):
            return cells
        return {**cells, "text": " | ".join(text for text in source.pairs[sample.index] if text is not None)}

    def decide(self, signature: Signature, score_K: np.ndarray) -> np.ndarray:
        """Returns True for each predicted class, (..., K)."""
        import numpy as np

        from mxtrain.metric.binary import sigmoid

        return sigmoid(score_K) >= np.array(self.thresholds(signature))

    def can_show(self, description: RunParts) -> bool:
        return description.dataset.gives.sample not in (Numbers, Arrays)  # these have no figures

    def show(
        self, signature: Signature, source: Any, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        names = signature.class_names
        true = [joined_names(names, target_K > 0) for target_K in targets[0]]
        predicted = [joined_names(names, self.decide(signature, score_K)) for score_K in predictions]
        if hasattr(source, "fetch"):
            from mxtrain.task.sample_figure import draw_captioned, images_of

            image_N, are_wrong = list(images_of(source)), [a != b for a, b in zip(true, predicted)]
            captions = [(a or "no class", b or "no class") for a, b in zip(true, predicted)]

            def draw(count: int) -> object:
                return draw_captioned(image_N[:count], captions[:count], are_wrong[:count], "")

            return [Figure("samples", draw)]
        if isinstance(source, TextPairs):
            first = texts_of(source)
        else:
            checks = checks_of(source)
            first = [str(checks.location(index)) for index in range(len(source))]
        rows = [list(row) for row in zip(first, true, predicted)]
        return [Table("samples", ["sample", "classes", "predicted"], rows)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.task.multi_label_report import MultiLabelReport

        return MultiLabelReport(signature.class_names, self.thresholds(signature), has_weights(description.dataset))

    def explained(
        self, description: RunParts, signature: Signature, outputs: Tuple[NDArray, ...], batch: Batch
    ) -> Explained:
        """Returns the score of the most probable class."""
        from mxtrain.engine.backend import nd
        from mxtrain.metric.binary import sigmoid
        from mxtrain.task.explained import Explained

        best_B = outputs[0].astype("float32").argmax(axis=-1)
        score_BK, target_BK, predicted_B = outputs[0].asnumpy(), batch.targets[0].asnumpy(), best_B.asnumpy()
        rows, names = range(batch.size), signature.class_names
        indices = predicted_B.astype(int).tolist()
        return Explained(
            lambda outputs: nd.pick(outputs[0].astype("float32"), best_B),
            [joined_names(names, target_K > 0) for target_K in target_BK],
            [names[index] for index in indices],
            sigmoid(score_BK[rows, indices]),
            target_BK[rows, indices] > 0,
        )

    def prediction_format(self) -> PredictionFormat:
        return MultiLabelFormat(self)

    def export_form(self) -> TaskExport:
        return MultiLabelExport(self)


class MultiLabelFormat(PredictionFormat):
    """Rows and files of the predictions of `MultiLabel`."""

    list_field: ClassVar[Tuple[str, str]] = ("classes", "classes")

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns the column classes, with a `|` between two names, then class_1, probability_1, class_2, ..."""
        return {"classes": "|".join(row["classes"]), **ranked_cells(row)}


class MultiLabelExport(TaskExport):
    """Export of networks of `MultiLabel`."""

    task: MultiLabel

    def outputs(
        self, F: OperatorModule, outputs: Sequence[Array], description: RunParts, signature: Signature
    ) -> Dict[str, Array]:
        return {"probabilities": F.sigmoid(outputs[0])}

    def facts(self, description: RunParts, signature: Signature, strategy: Strategy) -> Dict[str, Json]:
        return {**super().facts(description, signature, strategy), THRESHOLDS: self.task.thresholds(signature)}


def joined_names(names: Sequence[str], is_class_K: np.ndarray) -> str:
    """Returns the names of some of the classes, with a `|` between two."""
    return "|".join(name for name, is_class in zip(names, is_class_K.tolist()) if is_class)
