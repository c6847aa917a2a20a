"""Average precision of masks of single objects, as COCO defines it.

Legend: N detections, G objects, M rows, R rows of the collector, W columns of these.
"""

from __future__ import annotations

from typing import ClassVar, List, Optional, Sequence, Tuple, Type

import numpy as np

from mxtrain.metric.host import Collected, HostPredictions
from mxtrain.types.kinds import Takes
from mxtrain.vision.detection.coco_ap import CocoResult, evaluate_masks
from mxtrain.vision.detection.metrics import IMAGE, TRUE, CocoAP, CocoAR, CollectedBoxes, Overlap, true_boxes
from mxtrain.vision.instance_segmentation.mask_rows import detection_masks, encode_masks
from mxtrain.vision.kinds import Masks

CODES = 3
"""Kind of the rows with the packed masks of an image, which follow its other rows: true masks, then masks of
detections."""
_BYTES_PER_NUMBER = 6
"""Bytes packed into a number: float64 represents integers of 53 bits exactly."""
_SEPARATOR = b" "
"""Separator of codes; COCO's codes do not contain it."""


class CollectedMasks(CollectedBoxes):
    """Collects the values of `CollectedBoxes`, the size of each image, and the masks as COCO's run-length codes. These
    are exact, and need only a few hundred bytes each."""

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        assert meta_B is not None
        for index, detection_NR, true_MR, meta in zip(index_B, prediction_B, target_B, meta_B):
            detection_NR = detection_NR[detection_NR[:, 0] >= 0]
            self.add_masks(
                int(index),
                (int(meta[0]), int(meta[1])),
                true_boxes(true_MR, meta),
                meta[-1],
                detection_NR[:, :6],
                encode_masks(detection_masks(detection_NR)),
            )

    def add_masks(
        self,
        index: int,
        size: Tuple[int, int],
        true_GD: np.ndarray,
        true_codes: Sequence[bytes],
        detection_N6: np.ndarray,
        detection_codes: Sequence[bytes],
    ) -> None:
        """Adds an image.

        Args:
            index: index of the sample in its split.
            size: (height, width) of the image.
            true_GD: true boxes, with the columns of `boxes.Column`.
            true_codes: run-length codes of the true masks.
            detection_N6: class, score and edges of each detection.
            detection_codes: run-length codes of the masks of detections.
        """
        assert len(true_GD) == len(true_codes) and len(detection_N6) == len(detection_codes)
        row_RW = self.rows_of(true_GD, detection_N6)
        row_RW[0, 1:3] = size  # the row of kind `IMAGE`, whose other values are 0
        self.add(index, np.concatenate([row_RW, pack_codes([*true_codes, *detection_codes], self.width)]))

    def sizes(self) -> np.ndarray:
        """Returns height and width of each image, (P, 2), in the order of `boxes`."""
        rows = self.samples()  # column 2 is the kind of a row, see `CollectedBoxes.boxes`
        return rows[rows[:, 2] == IMAGE, 3:5].astype(np.int64)

    def codes(self) -> Tuple[List[bytes], List[bytes]]:
        """Returns the masks of true boxes and of detections, in the order of `boxes`."""
        rows = self.samples()
        true: List[bytes] = []
        detected: List[bytes] = []
        begins = np.flatnonzero(rows[:, 2] == IMAGE)
        for begin, end in zip(begins, [*begins[1:], len(rows)]):
            kind_R = rows[begin:end, 2]
            codes = unpack_codes(rows[begin:end][kind_R == CODES, 3:])
            count = int((kind_R == TRUE).sum())
            true += codes[:count]
            detected += codes[count:]
        return true, detected

    def overlap(self) -> Overlap:
        """Returns the function that computes the intersection over union of masks, by the indices of detections and
        objects in `boxes`."""
        from pycocotools import mask as coco_mask

        image_P, true_G8, detection_N8 = self.boxes()
        sizes = dict(zip(image_P.tolist(), self.sizes().tolist()))
        true, detected = (
            [{"size": sizes[int(row[0])], "counts": code} for row, code in zip(rows, codes)]
            for rows, codes in zip((true_G8, detection_N8), self.codes())
        )
        return lambda number, candidates: coco_mask.iou(
            [detected[number]], [true[candidate] for candidate in candidates.tolist()], [0] * len(candidates)
        )[0]

    def mask_coco(self) -> CocoResult:
        """Returns the result of COCO's evaluation of masks; computed once for all metrics."""
        if "masks" not in self._results:
            image_P, true_G8, detection_N8 = self.boxes()
            self._results["masks"] = evaluate_masks(image_P, self.sizes(), true_G8, detection_N8, *self.codes())
        return self._results["masks"]  # type: ignore[return-value]


def pack_codes(codes: Sequence[bytes], width: int) -> np.ndarray:
    """Packs codes of masks into rows of numbers, (R, W), since a collector can only hold numbers.

    Args:
        codes: codes of the masks.
        width: W.
    """
    text, bytes_per_row = _SEPARATOR.join(codes), (width - 1) * _BYTES_PER_NUMBER
    count = -(-len(text) // bytes_per_row)
    padded = text.ljust(count * bytes_per_row, b"\0")
    byte_RWB = np.frombuffer(padded, np.uint8).reshape(count, width - 1, _BYTES_PER_NUMBER)
    number_RW = byte_RWB.astype(np.float64) @ 256.0 ** np.arange(_BYTES_PER_NUMBER)
    return np.column_stack([np.full(count, CODES), number_RW])


def unpack_codes(number_RW: np.ndarray) -> List[bytes]:
    """Returns the codes in rows of `pack_codes`, without their first column."""
    byte_RWB = number_RW.astype(np.int64)[..., None] >> (8 * np.arange(_BYTES_PER_NUMBER)) & 255
    text = byte_RWB.astype(np.uint8).tobytes().rstrip(b"\0")
    return text.split(_SEPARATOR) if text else []


class MaskAP(CocoAP):
    """Average precision of masks as COCO's own tool (pycocotools) computes it: the mean over classes, and over
    thresholds from 0.5 to 0.95 where no `iou` is given."""

    collects: ClassVar[Type[Collected]] = CollectedMasks
    takes: ClassVar[Takes] = Takes(Masks)

    @property
    def signature(self) -> str:
        return super().signature.replace("COCO,", "COCO masks,")

    def result(self, collected: Collected) -> CocoResult:
        """Returns the result of COCO's evaluation of masks."""
        assert isinstance(collected, CollectedMasks)
        return collected.mask_coco()


class MaskAR(CocoAR, MaskAP):
    """Average recall of masks as COCO's own tool computes it: the mean over classes and thresholds of the highest
    recall."""
