"""Classification of tables with categories and numbers, such as clicks, credit, fraud or disease.

Legend: B batch, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.data.class_rows import binary_row, ranked_classes
from mxtrain.task.classification import class_result, ranked_cells, require_two_classes
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report
from mxtrain.task.task_export import TaskExport
from mxtrain.task.threshold import ThresholdTask
from mxtrain.types import Artifact, NonNegative, ProperFraction, Table
from mxtrain.types.kinds import RowClass, Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.metric.spec import Metric
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.types import Batch
    from mxtrain.types.annotations import Array, Json, JsonObject, OperatorModule


class TabularClassification(ThresholdTask):
    """Scores of the classes against targets (B,).

    With two classes there is one score (B, 1), and the probability of the second class is its sigmoid. With more there
    are scores (B, K), and probabilities are their softmax.
    """

    name: ClassVar[str] = "tabular"
    takes: ClassVar[Takes] = Takes(RowClass)
    distils: ClassVar[str] = "scores"

    baseline_rows: NonNegative = 200_000
    """Maximum number of training rows of the logistic regression with which `eval` compares the network; 0 = no
    comparison."""

    threshold: Optional[ProperFraction] = None
    """Least probability with which the second of two classes is predicted; null = 0.5. Metrics do not use it."""

    def check(self, description: RunParts) -> None:
        super().check(description)
        description.loss.require_unsmoothed("task=tabular smooths no targets")

    def num_classes(self, signature: Signature) -> int:
        """Returns the number of scores: 1 for two classes."""
        return 1 if len(signature.class_names) == 2 else len(signature.class_names)

    def with_threshold(self, threshold: float, signature: Signature) -> TabularClassification:
        require_two_classes(threshold, signature)
        return self.model_copy(update={"threshold": threshold})

    def num_choices(self, metric: Metric, signature: Signature) -> int:
        return len(signature.class_names)

    def output_names(self, signature: Signature) -> Sequence[str]:
        names = list(signature.class_names)
        return names[-1:] if len(names) == 2 else names

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        from mxtrain.metric.meter import Meter, MeterOutputs

        require_two_classes(self.threshold, signature)
        count = self.num_classes(signature)
        return Meter(description.metric, count, weights, MeterOutputs(is_binary=count == 1), training=training)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the scores before the sigmoid, (B,), or before the softmax, (B, K)."""
        score_BK = outputs[0].astype("float32")
        return score_BK.reshape((-1,)) if score_BK.shape[1] == 1 else score_BK

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the most probable class with its probability, and the next ones: both of two, else at least three."""
        names = signature.class_names
        if len(names) == 2:
            return binary_row(names, probability_of(prediction), self.threshold)
        return ranked_classes(names, probabilities_of(prediction), max(top_k, 3))

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the true and the predicted class, and the probability of the predicted one."""
        import numpy as np

        names, score = signature.class_names, sample.prediction
        # Two classes have one score; beside a 0 for the first class, the softmax is its sigmoid.
        probability_K = probabilities_of(np.array([0.0, score]) if len(names) == 2 else score)
        return class_result(names, sample.targets[0], probability_K, self.threshold)

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Any, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        import numpy as np

        locations = [str(source.checks().location(index)) for index in range(len(source))]
        names = signature.class_names
        true_names = [names[int(target)] for target in np.asarray(targets[0])]
        if len(names) == 2:
            rows = [
                [location, name, f"{probability_of(score):.3f}"]
                for location, name, score in zip(locations, true_names, predictions)
            ]
            return [Table("samples", ["row", "class", f"probability of {names[-1]}"], rows)]
        probability_NK = [probabilities_of(scores) for scores in predictions]
        rows = [
            [location, name, names[int(probability_K.argmax())], f"{probability_K.max():.3f}"]
            for location, name, probability_K in zip(locations, true_names, probability_NK)
        ]
        return [Table("samples", ["row", "class", "predicted", "probability"], rows)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.tables.report import TabularReport

        return TabularReport(self, description, signature, source)  # type: ignore[arg-type]  # they are rows

    def prediction_format(self) -> PredictionFormat:
        return TabularClassificationFormat(self)

    def export_form(self) -> TaskExport:
        return TabularClassificationExport(self)


class TabularClassificationFormat(PredictionFormat):
    """Rows and files of the predictions of `TabularClassification`."""

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns columns class, probability, and the probability of each of two classes, in the order of their names;
        of more classes class_1, probability_1, class_2, ..."""
        if len(row["top"]) > 2:
            return ranked_cells(row)
        both = sorted(row["top"], key=lambda choice: choice["class"])
        probabilities = {f"probability_{choice['class']}": choice["probability"] for choice in both}
        return {"class": row["class"], "probability": row["probability"], **probabilities}


class TabularClassificationExport(TaskExport):
    """Export of networks of `TabularClassification`."""

    task: TabularClassification

    def outputs(
        self, F: OperatorModule, outputs: Sequence[Array], description: RunParts, signature: Signature
    ) -> Dict[str, Array]:
        return {} if self.task.num_classes(signature) == 1 else {"probabilities": F.softmax(outputs[0])}


def probability_of(score: np.ndarray) -> float:
    """Returns the probability of a score."""
    import numpy as np

    from mxtrain.metric.binary import sigmoid

    return float(sigmoid(np.asarray(score)))


def probabilities_of(score_K: np.ndarray) -> np.ndarray:
    """Returns the softmax of the scores of several classes, (K,) float64."""
    import numpy as np

    exponential_K = np.exp(score_K.astype(np.float64) - score_K.max())
    return exponential_K / exponential_K.sum()
