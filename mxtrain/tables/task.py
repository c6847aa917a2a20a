"""Binary classification of tables with categories and numbers, such as clicks, credit, fraud or disease.

Legend: B batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Sequence, Tuple

from mxtrain.data.binary_row import binary_row
from mxtrain.task.base import Report, Task
from mxtrain.types import Artifact, NonNegative, Table

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Json, JsonObject
    from mxtrain.data.base import Samples
    from mxtrain.data.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.types import Batch


class TabularClassification(Task):
    """One score (B, 1) against targets (B,), 0 or 1; the probability of 1 is the sigmoid of the score."""

    name: ClassVar[str] = "tabular"
    dataset_options: ClassVar[Tuple[str, ...]] = ("feature_table", "libsvm")
    model_option: ClassVar[str] = "wide_deep"
    loss_option: ClassVar[str] = "binary_cross_entropy"
    metric_option: ClassVar[str] = "log_loss"
    has_classes: ClassVar[bool] = True

    baseline_rows: NonNegative = 200_000
    """Maximum number of training rows of the logistic regression that `eval` compares the network with; 0 = no such
    comparison."""

    def check(self, description: Description) -> None:
        super().check(description)
        description.loss.require_unsmoothed("task=tabular smooths no targets")

    def num_classes(self, signature: Signature) -> int:
        return 1

    def output_names(self, signature: Signature) -> Sequence[str]:
        return [signature.class_names[-1]]

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the scores before the sigmoid, (B,)."""
        return outputs[0].astype("float32").reshape((-1,))

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the more probable class with its probability, and both classes; see `binary_row`."""
        return binary_row(signature.class_names, probability_of(prediction))

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns columns class, probability, and the probability of each class, in the order of their names."""
        both = sorted(row["top"], key=lambda choice: choice["class"])
        probabilities = {f"probability_{choice['class']}": choice["probability"] for choice in both}
        return {"class": row["class"], "probability": row["probability"], **probabilities}

    def can_show(self, description: Description) -> bool:
        return True

    def show(
        self, signature: Signature, source: Any, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:  # fmt: skip
        import numpy as np

        places = [str(source.checks().place(index)) for index in range(len(source))]
        names = signature.class_names
        rows = [[place, names[int(target)], f"{probability_of(score):.3f}"]
                for place, target, score in zip(places, np.asarray(targets[0]), predictions)]  # fmt: skip
        return [Table("samples", ["row", "class", f"probability of {names[-1]}"], rows)]

    def build_report(self, description: Description, signature: Signature, source: Samples) -> Report:
        from mxtrain.tables.report import TabularReport

        return TabularReport(self, description, signature, source)  # type: ignore[arg-type]  # they are rows


def probability_of(score: np.ndarray) -> float:
    """Returns the probability of a score."""
    import numpy as np

    from mxtrain.metric.binary import sigmoid

    return float(sigmoid(np.asarray(score)))
