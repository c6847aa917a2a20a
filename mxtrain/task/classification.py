"""Classification: predicts one class for each sample, of images or texts.

Legend: N samples, B batch, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.data.class_rows import ranked_classes, ranked_order
from mxtrain.data.loading.samples import TextPairs
from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.task.merging import merge_class_scores
from mxtrain.task.own_loss import validate_loss_output
from mxtrain.task.prediction_format import PredictionFormat, class_name
from mxtrain.task.spec import Report
from mxtrain.task.task_export import TaskExport
from mxtrain.task.threshold import ThresholdTask
from mxtrain.types import Artifact, Figure, ProperFraction, Table
from mxtrain.types.kinds import Arrays, ClassIndex, Images, Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.passes import Variant
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.explained import Explained
    from mxtrain.task.merging import MergeOutputs
    from mxtrain.types import Batch
    from mxtrain.types.annotations import Array, Json, JsonObject, LossBlock, OperatorModule


def mixes(description: RunParts) -> bool:
    """Returns True if training labels are probabilities."""
    return description.dataset.mixes and description.trainer.overfit_batches is None


class Classification(ThresholdTask):
    """Scores (B, K) against class indices (B,), or against probabilities (B, K) where samples are mixed."""

    name: ClassVar[str] = "classification"
    takes: ClassVar[Takes] = Takes(ClassIndex)
    distils: ClassVar[str] = "scores"

    threshold: Optional[ProperFraction] = None
    """Least probability with which the second of two classes is predicted, in the order of the names; null = the most
    probable class is predicted. Metrics, which training measures too, do not use it."""

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss = description.loss
        if not isinstance(loss, CustomLoss) or loss.dense_labels:
            return
        # Class indices cannot be smoothed or mixed.
        remedy = "Type loss.dense_labels=true if it takes probabilities"
        loss.refuse_smoothing("class", f"{remedy}, or loss.label_smoothing=0.")
        if mixes(description):
            raise ConfigError(
                f"dataset.augment mixes samples, and {loss.name} is given class indices, which cannot be mixed. "
                f"{remedy}, or switch mixup and cutmix off."
            )

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        require_two_classes(self.threshold, signature)
        loss = description.loss.build(self.num_classes(signature), training)
        if training:
            loss.dense = mixes(description)
        return validate_loss_output(loss, description, self.output_shapes(description, signature))

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        from mxtrain.metric.meter import Meter

        dense = training and mixes(description)
        return Meter(description.metric, self.num_classes(signature), weights, dense=dense, training=training)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns class probabilities, (B, K)."""
        from mxtrain.engine.backend import nd

        # In 16 bits, probabilities have two or three digits, and many would be equal.
        return nd.softmax(outputs[0].astype("float32"))

    def merge_variants(self, description: RunParts, signature: Signature, variants: Sequence[Variant]) -> MergeOutputs:
        """Returns the function that averages probabilities; see `MergesVariants`."""
        return merge_class_scores

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the most probable class, its probability, and the next ones."""
        return ranked_classes(signature.class_names, prediction, top_k, self.threshold)

    def with_threshold(self, threshold: float, signature: Signature) -> Classification:
        require_two_classes(threshold, signature)
        return self.model_copy(update={"threshold": threshold})

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the true and the predicted class, the probability of the predicted one, and the text if it is one."""
        cells = class_result(signature.class_names, sample.targets[0], sample.prediction, self.threshold)
        if not isinstance(source, TextPairs):
            return cells
        return {**cells, "text": " | ".join(text for text in source.pairs[sample.index] if text is not None)}

    def can_show(self, description: RunParts) -> bool:
        sample = description.dataset.gives.sample
        return issubclass(sample, Images) or not issubclass(sample, Arrays)  # other arrays have no figures

    def show(
        self, signature: Signature, source: Any, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        import numpy as np

        from mxtrain.task.sample_figure import PredictedImages, draw_samples, images_of

        names, label_B = signature.class_names, targets[0].astype(int)
        if isinstance(source, TextPairs):
            best_B = [int(ranked_order(probability_K, self.threshold)[0]) for probability_K in predictions]
            rows = [
                [text, names[label], names[best], f"{probability_K[best]:.2f}"]
                for text, label, best, probability_K in zip(texts_of(source), label_B, best_B, predictions)
            ]
            return [Table("samples", ["text", "class", "predicted", "probability"], rows)]
        shown = PredictedImages(images_of(source), label_B, np.stack(predictions), self.threshold)
        return [Figure("samples", lambda max_samples: draw_samples(shown, names, max_samples))]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        return ConfusionReport(signature.class_names, self.threshold)

    def explained(
        self, description: RunParts, signature: Signature, outputs: Tuple[NDArray, ...], batch: Batch
    ) -> Explained:
        """Returns the score of the most probable class before the softmax: a probability near 1 hardly has a
        gradient."""
        import numpy as np

        from mxtrain.engine.backend import nd
        from mxtrain.task.explained import Explained

        best_B = outputs[0].astype("float32").argmax(axis=-1)
        predicted_B, label_B = (array.asnumpy().astype(int) for array in (best_B, batch.targets[0]))
        names = signature.class_names
        return Explained(
            lambda outputs: nd.pick(outputs[0].astype("float32"), best_B),
            [class_name(names, label) for label in label_B],
            [names[predicted] for predicted in predicted_B],
            self.decode(outputs, batch).asnumpy()[np.arange(batch.size), predicted_B],
            predicted_B == label_B,
        )

    def prediction_format(self) -> PredictionFormat:
        return ClassificationFormat(self)

    def export_form(self) -> TaskExport:
        return ClassificationExport(self)


class ClassificationFormat(PredictionFormat):
    """Rows and files of the predictions of `Classification`."""

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns columns class_1, probability_1, class_2, ..., the most probable class first."""
        return ranked_cells(row)


class ClassificationExport(TaskExport):
    """Export of networks of `Classification`."""

    def outputs(
        self, F: OperatorModule, outputs: Sequence[Array], description: RunParts, signature: Signature
    ) -> Dict[str, Array]:
        return {"probabilities": F.softmax(outputs[0])}


def require_two_classes(threshold: Optional[float], signature: Signature) -> None:
    """Rejects a threshold if there are more than two classes.

    Raises:
        ConfigError: this is the case.
    """
    if threshold is not None and len(signature.class_names) != 2:
        raise ConfigError(
            f"threshold={threshold}: it decides between two classes, and there are {len(signature.class_names)}. Leave "
            "it out."
        )


def class_result(
    names: Sequence[str], label: np.ndarray, probability_K: np.ndarray, threshold: Optional[float] = None
) -> Dict[str, Json]:
    """Returns the columns of a sample with a true class and class probabilities; see `ranked_classes`."""
    true, best = int(label), int(ranked_order(probability_K, threshold)[0])
    return {
        "true": class_name(names, true),
        "predicted": names[best],
        "probability": float(probability_K[best]),
    }


def ranked_cells(row: JsonObject) -> Dict[str, Json]:
    """Returns the columns class_1, probability_1, class_2, ... of a row of `ranked_classes`."""
    ranked_choices = enumerate(row["top"], start=1)
    return {f"{name}_{rank}": value for rank, choice in ranked_choices for name, value in choice.items()}


def texts_of(source: TextPairs) -> List[str]:
    """Returns the texts of a source as they are, pairs joined."""
    return [" | ".join(text for text in pair if text is not None) for pair in source.pairs]


class ConfusionReport(Report):
    """Reports the confusion matrix, and precision, recall and F1 of each class; of two classes also over the threshold.

    Args:
        class_names: names of the K classes.
        threshold: see `Classification.threshold`.
    """

    def __init__(self, class_names: Sequence[str], threshold: Optional[float] = None):
        self._class_names, self._threshold = list(class_names), threshold
        self._odds: List[NDArray] = []
        self._predicted: List[NDArray] = []
        self._label: List[NDArray] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        # The arrays are read after the pass, so that no batch waits for the device. Of equal scores, argmax takes the
        # first one, as the metric accuracy does.
        self._predicted.append(outputs[0].astype("float32").argmax(axis=-1))
        self._label.append(batch.targets[0])
        if len(self._class_names) == 2:
            scores = outputs[0].astype("float32")
            self._odds.append(scores[:, 1] - scores[:, 0])

    def artifacts(self, title: str) -> List[Artifact]:
        import numpy as np

        from mxtrain.metric.binary import sigmoid
        from mxtrain.task.confusion import confusion_artifacts

        label_N, predicted_N = (
            np.concatenate([array.asnumpy() for array in arrays]).astype(int)
            for arrays in (self._label, self._predicted)
        )
        if len(self._class_names) != 2:
            return confusion_artifacts(label_N, predicted_N, self._class_names, title)
        from mxtrain.task.multi_label_report import curve_artifacts

        odds_N = np.concatenate([array.asnumpy() for array in self._odds])
        if self._threshold is not None:
            predicted_N = (sigmoid(odds_N) >= self._threshold).astype(int)
        confusion = confusion_artifacts(label_N, predicted_N, self._class_names, title)
        return [*confusion, *curve_artifacts(odds_N, label_N, title)]
