"""Semantic-segmentation task: predicts a class for each pixel of an image.

Legend: B batch, K classes, H height, W width; h, w height and width of an original image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.loss.custom import CustomLoss
from mxtrain.task.merging import merge_class_scores
from mxtrain.task.own_loss import validate_loss_output
from mxtrain.task.prediction_format import JoinedFile, PredictionFormat
from mxtrain.task.spec import Report, Task
from mxtrain.types import Artifact, Figure, Table
from mxtrain.types.kinds import Takes
from mxtrain.vision.kinds import ClassMap
from mxtrain.vision.segmentation.losses import PixelSoftmaxCrossEntropy
from mxtrain.vision.segmentation.mask_png import class_shares, mask_png
from mxtrain.vision.segmentation.masked import MaskedDataset
from mxtrain.vision.segmentation.signature import MaskSignature
from mxtrain.vision.segmentation.tiled_masks import GAUSSIAN, TiledMasks

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode, Predictions
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.explained import Explained
    from mxtrain.task.merging import MergeOutputs
    from mxtrain.types import Batch
    from mxtrain.types.annotations import Json, JsonObject, LossBlock
    from mxtrain.vision.images.variants import ImageVariant

ORIGINAL_SIZE, FITTED_SIZE = slice(0, 2), slice(2, 4)
"""Columns of `Batch.meta`: (height, width) of the original image, and after it was fitted into the frame."""
MAX_SHOWN = 16
"""Number of images with the lowest accuracy in the report."""
BACKGROUND = "background"
"""Name of the background class in datasets."""


class Segmentation(Task):
    """Semantic segmentation.

    Outputs are scores (B, K, H, W), optionally followed by auxiliary scores of the same shape, which are only used in
    training (see `Model.num_auxiliary`). Targets are masks (B, H, W) of class indices; -1 is ignored. Predictions have
    the size of the original image.
    """

    name: ClassVar[str] = "segmentation"
    takes: ClassVar[Takes] = Takes(ClassMap)

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss = description.loss
        if not isinstance(loss, CustomLoss):
            return
        loss.refuse_smoothing("class")
        loss.refuse_counting_ignored("ignored pixels", "pixel_softmax_cross_entropy")

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Tuple[int, ...]]:
        shape = (self.num_classes(signature), *signature.shape[1:])
        return [shape] * (1 + description.model.num_auxiliary)

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        from mxtrain.metric.meter import Meter, MeterOutputs

        # Further outputs are auxiliary scores, used only in training.
        outputs = MeterOutputs(len(self.output_shapes(description, signature)), num_read=1)
        return Meter(description.metric, self.num_classes(signature), weights, outputs, training=training)

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        loss = description.loss
        if isinstance(loss, PixelSoftmaxCrossEntropy):
            dataset = description.dataset
            advised = dataset.pixel_weights if isinstance(dataset, MaskedDataset) else {}
            return loss.build_for(signature.class_names, advised, training)
        from mxtrain.loss.blocks import AllArraysLoss

        shapes = self.output_shapes(description, signature)
        return validate_loss_output(AllArraysLoss(loss.block()), description, shapes, shapes[0][1:])

    def merge_variants(
        self, description: RunParts, signature: Signature, variants: Sequence[ImageVariant]
    ) -> MergeOutputs:
        """Returns the function that averages the class probabilities of each pixel; see `MergesVariants`."""

        def merge(outputs: Sequence[Tuple[NDArray, ...]]) -> Tuple[NDArray, ...]:
            size = outputs[0][0].shape[2:]
            aligned = [(variant.undo(each[0], size), *each[1:]) for variant, each in zip(variants, outputs)]
            return merge_class_scores(aligned, axis=1)

        return merge

    def merge_tiles(self, description: RunParts, signature: Signature, blend: Optional[str]) -> TiledMasks:
        """Returns the functions that average the probabilities in tiles; see `MergesTiles`."""
        return TiledMasks(self.num_classes(signature), blend or GAUSSIAN)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> Predictions:
        """Returns the highest-scoring class of each pixel, (h, w) for each image, in its original size.

        If an image was scaled down, its scores are first resized to the original size by bilinear interpolation.
        """
        from mxtrain.engine.backend import nd

        score_BKHW = outputs[0].astype("float32")
        if batch.meta is None:
            return score_BKHW.argmax(axis=1)
        original_B2, fitted_B2 = batch.meta[:, ORIGINAL_SIZE].tolist(), batch.meta[:, FITTED_SIZE].tolist()
        # All images have one size and were not resized.
        if original_B2 == fitted_B2 and len(set(map(tuple, original_B2))) == 1:
            height, width = original_B2[0]
            return score_BKHW[:, :, :height, :width].argmax(axis=1)
        predictions = []
        for row, (original, fitted) in enumerate(zip(original_B2, fitted_B2)):
            score_1Khw = score_BKHW[row : row + 1, :, : fitted[0], : fitted[1]]
            if original != fitted:
                # Resize scores, not classes: the boundaries of classes are then smooth.
                height, width = original
                score_1Khw = nd.contrib.BilinearResize2D(score_1Khw, height=height, width=width, align_corners=False)
            predictions.append(score_1Khw.argmax(axis=1)[0])
        return predictions

    def result_predictions(self, decode: Decode, outputs: Tuple[NDArray, ...], batch: Batch) -> Predictions:
        """Returns the highest-scoring class of each pixel of the network's input, as metrics compare it."""
        return outputs[0].astype("float32").argmax(axis=1)

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the pixel accuracy and the mean over the image's classes of the intersection over union."""
        import numpy as np

        from mxtrain.vision.segmentation.metrics import MeanIoU, PixelAccuracy

        true_HW, count = sample.targets[0].astype(int), len(signature.class_names)
        if sample.prediction.shape != true_HW.shape:  # joined from tiles, in the original size
            true_HW = original_mask(source, sample.index, sample.meta, true_HW, sample.prediction.shape)
        cell_P = true_HW[true_HW >= 0] * count + sample.prediction[true_HW >= 0].astype(int)
        confusion_KK = np.bincount(cell_P, minlength=count**2).reshape(count, count)
        metrics = {"pixel_accuracy": PixelAccuracy(), "mean_iou": MeanIoU()}
        return {name: metric.of_confusion(confusion_KK) for name, metric in metrics.items()}

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the size of the image, and the share of pixels of each class that occurs."""
        shares = class_shares(prediction.astype("int64"), signature.class_names)
        return {"height": prediction.shape[0], "width": prediction.shape[1], "shares": shares}

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        from mxtrain.vision.segmentation.mask_figure import draw_masks, masked_samples

        samples = masked_samples(source, range(len(source)), predictions)
        return [Figure("samples", lambda max_samples: draw_masks(samples[:max_samples], signature.class_names))]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        return MaskReport(self, signature, source)

    def explained(
        self, description: RunParts, signature: Signature, outputs: Tuple[NDArray, ...], batch: Batch
    ) -> Explained:
        """Explains the mean score of the most frequent predicted class over its pixels. The background is chosen only
        if no other class is predicted.

        Source: K. Vinogradova, A. Dibrov, G. Myers, "Towards Interpretable Semantic Segmentation via Gradient-weighted
        Class Activation Mapping", AAAI 2020.
        """
        import numpy as np

        from mxtrain.engine.backend import nd
        from mxtrain.task.explained import Explained

        names, score_BKHW = signature.class_names, outputs[0].astype("float32")
        predicted_BHW = score_BKHW.argmax(axis=1).asnumpy().astype(np.int64)
        extent_B2 = None if batch.meta is None else batch.meta[:, FITTED_SIZE]
        if extent_B2 is not None:
            for predicted_HW, (height, width) in zip(predicted_BHW, extent_B2):
                predicted_HW[height:], predicted_HW[:, width:] = -1, -1
        chosen_B = np.array([largest_class(predicted_HW, names) for predicted_HW in predicted_BHW])
        region_BHW = predicted_BHW == chosen_B[:, None, None]
        true_B = [
            largest_class(mask_HW[region_HW], ())
            for mask_HW, region_HW in zip(batch.targets[0].asnumpy().astype(np.int64), region_BHW)
        ]
        class_BHW, is_in_region_BHW = (
            nd.array(array, ctx=score_BKHW.context, dtype="float32")
            for array in (np.where(region_BHW, chosen_B[:, None, None], 0), region_BHW)
        )

        def mean_over_region(values_BKHW: NDArray) -> NDArray:
            value_BHW = nd.pick(values_BKHW.astype("float32"), class_BHW, axis=1)
            return (value_BHW * is_in_region_BHW).sum(axis=(1, 2)) / is_in_region_BHW.sum(axis=(1, 2))

        return Explained(
            lambda outputs: mean_over_region(outputs[0]),
            ["" if true < 0 else names[true] for true in true_B],
            [names[chosen] for chosen in chosen_B],
            mean_over_region(nd.softmax(score_BKHW, axis=1)).asnumpy(),
            chosen_B == true_B,
            region_BHW,
            extent_B2,
        )

    def prediction_format(self) -> PredictionFormat:
        return SegmentationFormat(self)


class SegmentationFormat(PredictionFormat):
    """Rows and files of the predictions of `Segmentation`."""

    writes: ClassVar[str] = "mask"

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns the size of the image, and the most frequent class with its share."""
        name, share = next(iter(row["shares"].items()))
        plain = {key: value for key, value in row.items() if key != "shares"}
        return {**plain, "largest_class": name, "share": share}

    def encode_file(self, signature: Signature, prediction: np.ndarray, source: Samples, index: int) -> bytes:
        """Returns the mask as a PNG file in the format of the dataset; see `mask_png`."""
        return mask_png(prediction.astype("int64"), values_of(signature))

    def joined_files(self, signature: Signature, source: Samples) -> Sequence[JoinedFile]:
        """Returns a label volume for each volume and each DICOM series, as NIfTI."""
        from mxtrain.vision.segmentation.label_volumes import label_volumes

        return label_volumes(source, values_of(signature))


def values_of(signature: Signature) -> Sequence[int]:
    """Returns the value of each class in mask files."""
    return MaskSignature.cast(signature).mask_values or range(len(signature.class_names))


def largest_class(mask: np.ndarray, names: Sequence[str]) -> int:
    """Returns the most frequent class of a mask, but "background" only if no other class occurs; -1 if all pixels are
    ignored."""
    import numpy as np

    count_K = np.bincount(mask[mask >= 0])
    if not len(count_K):
        return -1
    foreground = [k for k in np.flatnonzero(count_K) if not names or names[k] != BACKGROUND]
    return int(max(foreground, key=lambda k: count_K[k], default=count_K.argmax()))


def original_mask(
    source: Samples, index: int, meta: np.ndarray, framed_HW: np.ndarray, size: Sequence[int]
) -> np.ndarray:
    """Returns the mask of a sample in the original (height, width) of its image. Only masks of images that were scaled
    down are read again.

    Args:
        source: source of the sample.
        index: index of the sample.
        meta: row of `Batch.meta`.
        framed_HW: the mask in the frame.
        size: (height, width) of the image.
    """
    from mxtrain.vision.segmentation.mask_figure import own_mask

    if (meta[ORIGINAL_SIZE] == meta[FITTED_SIZE]).all():
        return framed_HW[: size[0], : size[1]]
    return own_mask(source, index, size)


class MaskReport(Report):
    """Intersection over union of each class, at the original size of the images, and the worst images.

    Args:
        task: decodes the outputs.
        signature: signature with the names of the classes.
        source: source of the samples, with their masks.
    """

    def __init__(self, task: Segmentation, signature: Signature, source: Samples):
        import numpy as np

        self._decode: Decode = task.decode
        self._signature, self._source = signature, source
        self._confusion_KK = np.zeros((len(signature.class_names),) * 2, np.int64)
        self._pending: List[Tuple[Batch, Predictions]] = []
        self._worst: List[Tuple[float, int, np.ndarray]] = []

    def decode_by(self, decode: Decode) -> None:
        self._decode = decode

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        from mxtrain.engine.predictions import BATCHES_AHEAD

        # Count a few batches later, so that the host does not wait for the device, and few masks are kept in memory.
        self._pending.append((batch, self._decode(outputs, batch)))
        if len(self._pending) > BATCHES_AHEAD:
            self._count(*self._pending.pop(0))

    def _count(self, batch: Batch, decoded: Predictions) -> None:
        """Adds the predictions of a batch to the confusion matrix and to the worst images."""
        import numpy as np

        from mxtrain.engine.predictions import to_host

        num_classes = len(self._confusion_KK)
        assert batch.index_B is not None and batch.meta is not None
        framed_BHW = batch.targets[0].asnumpy()
        for row, (index, prediction) in enumerate(zip(batch.index_B, to_host(decoded))):
            mask_hw = original_mask(self._source, int(index), batch.meta[row], framed_BHW[row], prediction.shape)
            is_used_hw = mask_hw >= 0
            cell_P = mask_hw[is_used_hw].astype(np.int64) * num_classes + prediction[is_used_hw].astype(np.int64)
            confusion_KK = np.bincount(cell_P, minlength=num_classes**2).reshape(num_classes, num_classes)
            self._confusion_KK += confusion_KK
            if not is_used_hw.any():
                continue  # without a labelled pixel it is neither good nor bad
            accuracy = float(confusion_KK.trace() / confusion_KK.sum())
            worst = [*self._worst, (accuracy, int(index), prediction)]
            self._worst = sorted(worst, key=lambda item: item[:2])[:MAX_SHOWN]

    def _finish(self) -> None:
        """Counts all pending batches."""
        while self._pending:
            self._count(*self._pending.pop(0))

    def values(self) -> Mapping[str, float]:
        """Returns metrics at the original size of the images; on the device, larger images were measured at a reduced
        size."""
        from mxtrain.vision.segmentation.metrics import MeanIoU, PixelAccuracy

        self._finish()
        return {
            "pixel_accuracy": PixelAccuracy().of_confusion(self._confusion_KK),
            "mean_iou": MeanIoU().of_confusion(self._confusion_KK),
            "mean_iou_all_classes": MeanIoU(absent_classes="zero").of_confusion(self._confusion_KK),
        }

    def artifacts(self, title: str) -> List[Artifact]:
        import numpy as np

        from mxtrain.vision.segmentation.mask_figure import draw_masks, masked_samples
        from mxtrain.vision.segmentation.metrics import intersection_over_union

        self._finish()
        iou_K, is_present_K = intersection_over_union(self._confusion_KK)
        pixels_K = self._confusion_KK.sum(axis=1)
        recall_K = np.diag(self._confusion_KK) / np.maximum(pixels_K, 1)
        rows = [
            [name, float(iou) if is_present else "", float(recall) if pixels else "", int(pixels)]
            for name, iou, is_present, recall, pixels in zip(
                self._signature.class_names, iou_K, is_present_K, recall_K, pixels_K
            )
        ]
        samples = masked_samples(
            self._source, [index for _, index, _ in self._worst], [prediction for _, _, prediction in self._worst]
        )
        names = self._signature.class_names
        return [
            Table("classes", ["class", "IoU", "accuracy", "pixels"], rows),
            Table(
                "confusion",
                ["", *names],
                [[name, *map(int, row)] for name, row in zip(names, self._confusion_KK)],
                is_shown=False,
            ),
            Figure("worst", lambda max_samples: draw_masks(samples[:max_samples], names)),
        ]
