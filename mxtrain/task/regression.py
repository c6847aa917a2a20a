"""Regression: predicts one number for each sample.

Legend: B batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, List, Mapping, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.task.base import Report, Task
from mxtrain.types import Artifact, Picture, Table

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray
    from PIL import Image

    from mxtrain.annotations import Json, LossBlock
    from mxtrain.dataset.base import Samples
    from mxtrain.dataset.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.types import Batch


class Regression(Task):
    """One output (B, 1) against targets (B,), both in the targets' own unit."""

    name: ClassVar[str] = "regression"
    model_option: ClassVar[str] = "mlp"
    loss_option: ClassVar[str] = "l2"
    metric_option: ClassVar[str] = "root_mean_squared_error"

    def check(self, description: Description) -> None:
        super().check(description)
        loss = description.loss
        loss.require_unsmoothed("task=regression has no classes to smooth over")
        if description.dataset.mixes:
            raise ConfigError(
                "dataset.augment mixes samples, which task=regression cannot. Switch mixup and cutmix off."
            )

    def num_classes(self, signature: Signature) -> int:
        return 1

    def build_loss(self, description: Description, signature: Signature, training: bool) -> LossBlock:
        from mxtrain.loss.blocks import RegressionLoss

        return self.tried(RegressionLoss(description.loss.block()), description, [(1,)])

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """The predicted numbers, (B,)."""
        return outputs[0].astype("float32").reshape((-1,))

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        return {"value": round(float(prediction), 6)}

    def can_show(self, description: Description) -> bool:
        return True

    def show(
        self, signature: Signature, source: Any, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:  # fmt: skip
        from mxtrain.task.classification import texts_of

        names = (
            texts_of(source)
            if signature.tokenizer_config is not None
            else [str(number) for number in range(len(source))]
        )
        rows = [[name, f"{target:.4g}", f"{found:.4g}"] for name, target, found in zip(names, targets[0], predictions)]
        return [Table("samples", ["sample", "target", "predicted"], rows)]

    def build_report(self, description: Description, signature: Signature, source: Samples) -> Report:
        return ScatterReport(self)


class ScatterReport(Report):
    """Targets and predictions as a table and a picture.

    Args:
        task: decodes.
    """

    def __init__(self, task: Regression):
        self._task = task
        self._found: List[Tuple[Any, NDArray, NDArray]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        self._found.append((batch.index_B, batch.targets[0], self._task.decode(outputs, batch)))

    def artifacts(self, title: str) -> List[Artifact]:
        import numpy as np

        index_N = np.concatenate([index for index, _, _ in self._found])
        order = np.argsort(index_N, kind="stable")
        target_N, found_N = (np.concatenate([part[k].asnumpy() for part in self._found])[order] for k in (1, 2))
        rows = [[int(i), float(t), float(p)] for i, t, p in zip(index_N[order], target_N, found_N)]
        return [
            Table("predictions", ["sample", "target", "predicted"], rows, is_shown=False),
            Picture("scatter", lambda most: draw_scatter(target_N, found_N, title)),
        ]


def draw_scatter(target_N: np.ndarray, predicted_N: np.ndarray, title: str) -> Image.Image:
    """Predictions over targets; on the line they are the same."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(4.5, 4.5), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low, high = float(min(target_N.min(), predicted_N.min())), float(max(target_N.max(), predicted_N.max()))
    axes.plot([low, high], [low, high], color="lightgrey", linewidth=1)
    axes.scatter(target_N, predicted_N, s=8, alpha=0.6)
    axes.set(xlabel="target", ylabel="predicted", title=title)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
