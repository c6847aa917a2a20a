"""A task of your own: images with noise go in, and the network gives them back without."""

from __future__ import annotations

from typing import Any, ClassVar, List, Literal, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.metric.spec import Metric
from mxtrain.task import Task
from mxtrain.types import Artifact, Batch, Figure, Positive, PositiveFloat
from mxtrain.types.kinds import Takes


class Denoising(Task):
    """Noisy images in, (B, C, H, W), and clean ones out, in the units in which images enter the network."""

    noise: PositiveFloat = 0.5
    """Standard deviation of the noise."""

    def output_shapes(self, description: Any, signature: Any) -> List[Tuple[int, ...]]:
        return [tuple(signature.shape)]

    def build_collate(self, description: Any, signature: Any, training: bool) -> Any:
        """The image becomes the target, and noise is added to the input: other noise in each epoch of training."""

        def collate(batch: Batch, epoch: int) -> Batch:
            from mxnet import nd

            clean, seed = batch.inputs[0], description.trainer.seed
            draws = [np.random.default_rng([seed, epoch if training else 2**31, int(i)]) for i in batch.index_B]
            noise_BCHW = np.stack([draw.normal(0, self.noise, signature.shape) for draw in draws]).astype(np.float32)
            noisy = clean + nd.array(noise_BCHW, ctx=clean.context)
            return Batch((noisy,), (clean,), batch.size, batch.global_size, batch.index_B)

        return collate

    def build_loss(self, description: Any, signature: Any, training: bool) -> Any:
        return description.loss.block()

    def decode(self, outputs: Tuple[Any, ...], batch: Batch) -> Any:
        return outputs[0]

    def row(self, signature: Any, prediction: np.ndarray, top_k: int) -> Mapping[str, Any]:
        return {"mean": round(float(prediction.mean()), 6), "std": round(float(prediction.std()), 6)}

    def can_show(self, description: Any) -> bool:
        return True

    def show(
        self, signature: Any, source: Any, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        def draw(most: int) -> Any:
            from PIL import Image

            rows = [np.concatenate(list(images[:most, 0]), axis=1) for images in (targets[0], np.stack(predictions))]
            grey = np.concatenate(rows) * signature.std[0] + signature.mean[0]
            return Image.fromarray((255 * grey.clip(0, 1)).astype(np.uint8)).resize((grey.shape[1] * 6, 96))

        return [Figure("samples", draw)]


class PSNR(Metric):
    """Peak signal-to-noise ratio: the mean over images of 10 log10(range^2 / mean squared error), in decibels."""

    range: PositiveFloat = 1.0
    """The largest difference of two pixels that there can be."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes()

    def sums(self, F: Any, found_BCHW: Any, clean_BCHW: Any, num_classes: int) -> Any:
        error_B = F.mean(F.square(found_BCHW - clean_BCHW), axis=(1, 2, 3))
        return F.sum(10 * F.log10(self.range**2 / F.maximum(error_B, 1e-12))).reshape((1,))


def network(channels: Positive = 16, depth: int = 3, input_shape: Optional[Tuple[int, ...]] = None) -> Any:
    """Convolutions that keep the image's size; `input_shape` is filled in."""
    from mxnet.gluon import nn

    made = nn.HybridSequential()
    for _ in range(depth - 1):
        made.add(nn.Conv2D(channels, 3, padding=1, activation="relu"))
    made.add(nn.Conv2D(input_shape[0] if input_shape else 1, 3, padding=1))
    return made
