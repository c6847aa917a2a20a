"""Merges the detections for several variants of images (test-time augmentation).

Legend: B batch, N detections of a variant, V variants, R columns of a detection, S cells along a side of a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.types import shapes_of

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.signature import Signature
    from mxtrain.vision.detection.heads.base import BoxCoding, Detector
    from mxtrain.vision.images.variants import ImageVariant

    Outputs = Tuple[NDArray, ...]

BOX_COLUMNS = 6
"""Columns of a detection before those of its mask: class, score, left, top, right, bottom."""
MERGE_IOU = 0.5
"""Intersection over union from which two boxes of a class, of different variants, are one object."""


class MergedDetections(Tuple["NDArray", ...]):
    """Outputs for the unchanged images, from which losses are computed, with the merged detections.

    Attributes:
        detection_BNR: detections in pixels of the network's input, as `BoxCoding.decode` returns them.
    """

    detection_BNR: NDArray


def decode_outputs(coding: BoxCoding, outputs: Outputs) -> NDArray:
    """Returns the detections of outputs, in pixels of the network's input; those of merged outputs are known."""
    if isinstance(outputs, MergedDetections):
        return outputs.detection_BNR
    return coding.decode(outputs)  # type: ignore[return-value]  # of arrays


class VariantMerger:
    """Merges outputs: boxes are moved back to the unchanged image, and non-maximum suppression keeps the highest score
    of each object.

    Args:
        model: the detector.
        num_classes: number of classes.
        signature: signature of the network.
        variants: the variants, the unchanged one first.

    Raises:
        ConfigError: the network does not take images of a variant's size.
    """

    def __init__(
        self, model: Detector, num_classes: int, signature: Signature, variants: Sequence[ImageVariant]
    ) -> None:
        channels, *size = shapes_of(signature.shape)[0]
        self._size, self._variants = size, variants
        self._codings: List[BoxCoding] = []
        for variant in variants:
            variant_size = variant.size(size)
            if list(variant_size) != size:
                _require_size(model, variant_size)
            self._codings.append(model.box_coding(num_classes, (channels, *variant_size)))

    def __call__(self, outputs: Sequence[Outputs]) -> Outputs:
        from mxtrain.engine.backend import nd

        moved = [
            self._moved_back(variant, coding.decode(each))  # type: ignore[arg-type]  # of arrays
            for variant, coding, each in zip(self._variants, self._codings, outputs)
        ]
        kept_BNR = nd.contrib.box_nms(
            nd.concat(*moved, dim=1), overlap_thresh=MERGE_IOU, valid_thresh=0, coord_start=2, score_index=1, id_index=0
        )
        merged = MergedDetections(outputs[0])
        merged.detection_BNR = kept_BNR.slice_axis(axis=1, begin=0, end=moved[0].shape[1])
        return merged

    def _moved_back(self, variant: ImageVariant, detection_BNR: NDArray) -> NDArray:
        """Returns the detections of a variant in pixels of the unchanged input."""
        from mxtrain.engine.backend import nd

        height, width = self._size
        variant_height, variant_width = variant.size(self._size)
        columns = [detection_BNR.slice_axis(axis=2, begin=column, end=column + 1) for column in range(BOX_COLUMNS)]
        names_BN2, (left, top, right, bottom) = nd.concat(*columns[:2], dim=2), columns[2:]
        if variant_width != width:
            left, right = left * (width / variant_width), right * (width / variant_width)
        if variant_height != height:
            top, bottom = top * (height / variant_height), bottom * (height / variant_height)
        if variant.is_flipped:
            left, right = width - right, width - left
        if variant.is_upside_down:
            top, bottom = height - bottom, height - top
        parts = [names_BN2, left, top, right, bottom]
        if detection_BNR.shape[2] > BOX_COLUMNS:
            mask_BNP = detection_BNR.slice_axis(axis=2, begin=BOX_COLUMNS, end=None)
            side = round(mask_BNP.shape[2] ** 0.5)
            # `mirrored` takes maps of four axes.
            parts.append(variant.mirrored(mask_BNP.reshape((0, 0, side, side))).reshape(mask_BNP.shape))
        return nd.concat(*parts, dim=2)


def _require_size(model: Detector, size: Sequence[int]) -> None:
    """Rejects images of a scaled variant that a network does not take.

    Raises:
        ConfigError: this is the case.
    """
    height, width = size
    try:
        model.require_sizes([size])
    except ConfigError as error:
        raise ConfigError(
            f"augment=scales: {model.title} does not take images of {height}x{width}. Type augment=flip, or choose "
            "other factors with augment_scales=[...]."
        ) from error
