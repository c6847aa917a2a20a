"""Regression task: predicts one number for each sample.

Legend: B batch, N samples.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, List, Mapping, Optional, Sequence, Tuple

from mxtrain.data.loading.samples import Source, TextPairs
from mxtrain.data.sample_weights import has_weights
from mxtrain.errors import ConfigError
from mxtrain.task.merging import merge_values
from mxtrain.task.own_loss import validate_loss_output
from mxtrain.task.spec import Report, Task
from mxtrain.types import Artifact, Figure, Shapes, Table, shapes_of
from mxtrain.types.kinds import Number, Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray
    from PIL import Image

    from mxtrain.config.parts import RunParts
    from mxtrain.data.passes import Variant
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.merging import MergeOutputs
    from mxtrain.types import Batch
    from mxtrain.types.annotations import Json, LossBlock


class Regression(Task):
    """Regression with one output (B, 1) and targets (B,).

    The network and the loss see targets that are standardised by mean and deviation of the training samples, stored in
    the signature. Metrics and predictions are in the unit of the targets.
    """

    name: ClassVar[str] = "regression"
    takes: ClassVar[Takes] = Takes(Number)
    distils: ClassVar[str] = "values"

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss = description.loss
        loss.require_unsmoothed("task=regression has no classes to smooth over")
        if description.dataset.mixes:
            raise ConfigError(
                "dataset.augment mixes samples, which task=regression cannot. Switch mixup and cutmix off."
            )

    def num_classes(self, signature: Signature) -> int:
        return 1

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        from mxtrain.loss.blocks import RegressionLoss

        block = RegressionLoss(description.loss.block(), signature.target_mean, signature.target_std)
        return validate_loss_output(block, description, [(1,)])

    def output_scale(self, signature: Signature) -> Tuple[float, float]:
        return signature.target_mean, signature.target_std

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        """Returns the function that decodes predictions, (B,), in the unit of the targets."""

        def decode(outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
            # Not a layer of the network: in float16, targets such as 300,000 would be infinite.
            return self.decode(outputs, batch) * signature.target_std + signature.target_mean

        return decode if signature.scales_targets else self.decode

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the standardised predictions of the network, (B,)."""
        return outputs[0].astype("float32").reshape((-1,))

    def merge_variants(self, description: RunParts, signature: Signature, variants: Sequence[Variant]) -> MergeOutputs:
        """Returns the function that averages predicted numbers; see `MergesVariants`."""
        return merge_values

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        return {"value": round(float(prediction), 6)}

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the true and the predicted number, in the unit of the target."""
        return {"true": float(sample.targets[0]), "predicted": float(sample.prediction)}

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Any, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        from mxtrain.task.classification import texts_of

        if isinstance(source, Source) and is_image(signature.shape):
            return [Figure("samples", functools.partial(draw_numbers, source, predictions, targets[0]))]
        names = texts_of(source) if isinstance(source, TextPairs) else [str(number) for number in range(len(source))]
        rows = [
            [name, f"{target:.4g}", f"{prediction:.4g}"]
            for name, target, prediction in zip(names, targets[0], predictions)
        ]
        return [Table("samples", ["sample", "target", "predicted"], rows)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        return ScatterReport(self.build_decode(description, signature), signature, has_weights(description.dataset))


class ScatterReport(Report):
    """Compares the errors of the network with those of the mean training target, and lists and draws predictions.

    Args:
        decode: function that converts outputs to predictions.
        signature: signature of the network, with the scale of the targets.
        weighted: True if the last target is the weight of each sample in the errors.
    """

    def __init__(self, decode: Decode, signature: Signature, weighted: bool = False):
        self._decode, self._signature, self._weighted = decode, signature, weighted
        self._batches: List[Tuple[Any, ...]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        predicted_B: NDArray = self._decode(outputs, batch)  # type: ignore[assignment]  # it is one array
        self._batches.append((batch.index_B, batch.targets[0], predicted_B, *batch.targets[-1:]))

    def artifacts(self, title: str) -> List[Artifact]:
        import numpy as np

        index_N = np.concatenate([batch[0] for batch in self._batches])
        order = np.argsort(index_N, kind="stable")
        target_N, predicted_N, weight_N = (
            np.concatenate([batch[k].asnumpy() for batch in self._batches])[order] for k in (1, 2, 3)
        )
        weights = weight_N if self._weighted else None
        compared = [("this network", predicted_N)]
        if self._signature.scales_targets:
            mean = self._signature.target_mean
            compared.append((f"mean of the training targets, {mean:.6g}", np.full(len(target_N), mean)))
        return [
            Table(
                "models",
                ("model", "root mean squared error", "mean absolute error"),
                [[name, *errors_of(value_N, target_N, weights)] for name, value_N in compared],
            ),
            Figure("scatter", lambda max_samples: draw_scatter(target_N, predicted_N, title)),
        ]


def is_image(shape: Shapes) -> bool:
    """Returns True if a sample with inputs of these shapes can be drawn as an image."""
    shapes = shapes_of(shape)
    return len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][0] in (1, 3)


def draw_numbers(
    source: Source, predictions: Sequence[np.ndarray], target_N: np.ndarray, max_samples: int
) -> Image.Image:
    """Draws images, with the target and the prediction under each.

    Args:
        source: the images.
        predictions: prediction of each image.
        target_N: target of each image.
        max_samples: largest number of images to draw.
    """
    from mxtrain.task.sample_figure import draw_captioned, images_of

    captions = [(f"{target:.4g}", f"{prediction:.4g}") for target, prediction in zip(target_N, predictions)]
    images = list(images_of(source))[:max_samples]
    return draw_captioned(images, captions[:max_samples], [False] * len(images), "")


def errors_of(
    predicted_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None
) -> Tuple[float, float]:
    """Returns root mean squared error and mean absolute error, rounded to six digits; None as weights = all 1."""
    import numpy as np

    difference_N = predicted_N.astype(np.float64) - target_N
    square, absolute = (np.average(value_N, weights=weight_N) for value_N in (difference_N**2, np.abs(difference_N)))
    return float(f"{np.sqrt(square):.6g}"), float(f"{absolute:.6g}")


def draw_scatter(target_N: np.ndarray, predicted_N: np.ndarray, title: str) -> Image.Image:
    """Draws a scatter plot of predictions over targets, with the diagonal of equal values."""
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
