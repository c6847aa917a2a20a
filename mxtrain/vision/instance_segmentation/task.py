"""Instance-segmentation task: predicts a class, a score, a box and a mask for each object.

Legend: B batch, M boxes of an image, N detections, R columns of a row with a mask, S cells along a side of a mask, T =
B N.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, ClassVar, List, Mapping, Optional, Tuple

from mxtrain.errors import ConfigError
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.report import Report
from mxtrain.types import shapes_of
from mxtrain.types.kinds import Takes
from mxtrain.vision.detection.heads.base import InstanceDetector
from mxtrain.vision.detection.task import Detection, DetectionFormat
from mxtrain.vision.detection.tiled_detections import EDGES, TiledDetections
from mxtrain.vision.instance_segmentation.mask_arithmetic import resample_masks
from mxtrain.vision.instance_segmentation.mask_rows import DETECTION_COLUMNS, detection_masks, encode_masks
from mxtrain.vision.kinds import Masks

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.parallel.base import Strategy
    from mxtrain.types import Batch
    from mxtrain.types.annotations import Json, JsonObject


IMAGE_SIZE = slice(6, 8)
"""Columns of a prediction: height and width of the image."""


class InstanceSegmentation(Detection):
    """Instance segmentation. The `BoxCoding` of the network decodes its outputs.

    Targets are boxes with masks (B, M, R), see `mask_rows`, and the arrays that the coding encodes them to.
    Predictions are (N, 8 + S * S) for each image, highest score first: class, score, left, top, right, bottom in pixels
    of the original image; height and width of that image; and the mask inside the box, from 0 to 1. Rows of class -1
    are padding.
    """

    name: ClassVar[str] = "instance_segmentation"
    takes: ClassVar[Takes] = Takes(Masks)

    def check(self, description: RunParts) -> None:
        super().check(description)
        if not isinstance(description.model, InstanceDetector):
            raise ConfigError(
                "task=instance_segmentation: a model of your own must define how its masks are decoded: derive it from "
                "mxtrain.vision.detection.heads.base.InstanceDetector."
            )

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        from mxtrain.engine.backend import nd

        decode_boxes = super().build_decode(description, signature, strategy)
        _, height, width = shapes_of(signature.shape)[0]

        def decode(outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
            detection_BNR = decode_boxes(outputs, batch)
            assert not isinstance(detection_BNR, (list, tuple))
            sizes = [[height, width]] * len(detection_BNR) if batch.meta is None else batch.meta[:, :2].tolist()
            size_B12 = nd.array(sizes, ctx=detection_BNR.context).reshape((-1, 1, 2))
            size_BN2 = nd.broadcast_axis(size_B12, axis=1, size=detection_BNR.shape[1])
            box_BN6, mask_BNS = (
                detection_BNR.slice_axis(axis=2, begin=begin, end=end) for begin, end in ((0, 6), (6, None))
            )
            return nd.concat(box_BN6, size_BN2, mask_BNS, dim=2)

        return decode

    def clip_to_image(self, detection_BNR: NDArray, edge_BN4: NDArray, inside_BN4: NDArray) -> NDArray:
        """Clips detections to their image, and crops their masks to the remaining boxes; see
        `Detection.clip_to_image`."""
        from mxtrain.engine.backend import nd

        mask_BNS = detection_BNR.slice_axis(axis=2, begin=6, end=None)
        side = round(mask_BNS.shape[2] ** 0.5)
        mask_TSS = mask_BNS.reshape((-1, side, side))
        edge_T4, inside_T4 = (edge.reshape((-1, 4)) for edge in (edge_BN4, inside_BN4))
        cropped_BNS = resample_masks(nd, mask_TSS, edge_T4, inside_T4, mask_TSS).reshape(mask_BNS.shape)
        # Masks of boxes inside the image are not resampled, which would change their last bits.
        is_clipped_BN1 = (edge_BN4 - inside_BN4).abs().max(axis=2, keepdims=True) > 0
        mask_BNS = nd.where(nd.broadcast_like(is_clipped_BN1, mask_BNS), cropped_BNS, mask_BNS)
        return nd.concat(super().clip_to_image(detection_BNR, edge_BN4, inside_BN4), mask_BNS, dim=2)

    def tiled_detections(self, build_decode: Callable[[], Decode]) -> TiledDetections:
        return TiledInstances(build_decode)

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the detections, highest score first: class, score, box, and the mask as COCO's run-length code."""
        shown_NR = self.shown(prediction)
        detections: List[JsonObject] = super().row(signature, prediction, top_k)["found"]  # type: ignore[assignment]
        size = [int(side) for side in prediction[0, 6:8]]
        masks = [{"size": size, "counts": code.decode("ascii")} for code in encode_masks(detection_masks(shown_NR))]
        return {"found": [{**detection, "mask": mask} for detection, mask in zip(detections, masks)]}

    def coco_location(self, detection: JsonObject) -> JsonObject:
        """Returns the mask in the format of COCO results. It does not include the box, whose area pycocotools would use
        as the area of the mask."""
        return {"segmentation": detection["mask"]}

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.vision.instance_segmentation.report import InstanceReport

        return InstanceReport(self, self.build_decode(description, signature), signature, source)

    def prediction_format(self) -> PredictionFormat:
        return InstanceSegmentationFormat(self)


class TiledInstances(TiledDetections):
    """Merges detections with masks: the mask of an object is the union of those of its parts."""

    def in_image(self, detection_NR: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
        detection_NR[:, IMAGE_SIZE] = size
        return detection_NR

    def join(self, detection_NR: np.ndarray) -> np.ndarray:
        from mxtrain.engine.backend import nd

        joined_R = super().join(detection_NR)
        if len(detection_NR) > 1:
            side = round((detection_NR.shape[1] - DETECTION_COLUMNS) ** 0.5)
            mask_NSS = nd.array(detection_NR[:, DETECTION_COLUMNS:]).reshape((-1, side, side))
            edge_N4 = nd.array(detection_NR[:, EDGES])
            region_N4 = nd.array(joined_R[EDGES]).broadcast_to(edge_N4.shape)
            moved_NSS = resample_masks(nd, mask_NSS, edge_N4, region_N4, mask_NSS)
            joined_R[DETECTION_COLUMNS:] = moved_NSS.max(axis=0).reshape((-1,)).asnumpy()
        return joined_R


class InstanceSegmentationFormat(DetectionFormat):
    """Rows and files of the predictions of `InstanceSegmentation`."""

    list_field: ClassVar[Tuple[str, str]] = ("found", "masks")
