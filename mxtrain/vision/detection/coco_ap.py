"""Asks COCO's own tool, pycocotools, about boxes, masks or key points that are in memory: nothing is written, nothing
printed."""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from mxtrain.vision.detection.boxes import Flag

AREA_NAMES = ("all", "small", "medium", "large")
POINT_AREA_NAMES = ("all", "medium", "large")
"""Of key points: COCO marks none of small objects."""
MAX_POSES = 20
"""Maximum number of poses per image that COCO evaluates, highest score first."""
Annotations = List[Dict[str, Any]]


@dataclass(frozen=True)
class CocoResult:
    """Accumulated results of COCOeval.

    Attributes:
        precision_TRKAM: precision by threshold, recall, class, area and number of detections; -1 if undefined.
        recall_TKAM: recall by threshold, class, area and number of detections; -1 if undefined.
        iou_T: thresholds of the intersection over union.
        max_detections: numbers of detections, M.
        class_K: indices of the classes.
        areas: names of the ranges of areas, A.
    """

    precision_TRKAM: np.ndarray
    recall_TKAM: np.ndarray
    iou_T: np.ndarray
    max_detections: List[int]
    class_K: List[int]
    areas: Sequence[str] = AREA_NAMES

    def precision(self, iou: Optional[float], area: str, max_detections: int, number: Optional[int] = None) -> float:
        """Returns the mean precision as COCO's summary does; NaN if it is undefined, for which COCO returns -1.

        Args:
            iou: a threshold, or None for all.
            area: name of the range of object areas.
            max_detections: maximum number of detections per image.
            number: index of a class; None: the mean of all.
        """
        return self._mean(self.precision_TRKAM, iou, area, max_detections, number)

    def recall(self, iou: Optional[float], area: str, max_detections: int, number: Optional[int] = None) -> float:
        """See `precision`."""
        return self._mean(self.recall_TKAM, iou, area, max_detections, number)

    def _mean(
        self, values: np.ndarray, iou: Optional[float], area: str, max_detections: int, number: Optional[int]
    ) -> float:
        part = values[..., self.areas.index(area), self.max_detections.index(max_detections)]
        if iou is not None:
            part = part[np.isclose(self.iou_T, iou)]
        if number is not None:
            part = part[..., [self.class_K.index(number)]] if number in self.class_K else part[..., :0]
        part = part[part > -1]
        return float(part.mean()) if part.size else math.nan


def evaluate_boxes(image_P: np.ndarray, true_G8: np.ndarray, detection_N8: np.ndarray) -> CocoResult:
    """Runs COCOeval.

    Args:
        image_P: the numbers of all images, those without boxes too.
        true_G8: image, class, flags, left, top, right, bottom, area.
        detection_N8: image, class, score, left, top, right, bottom, area.
    """
    classes = sorted({int(row[1]) for rows in (true_G8, detection_N8) for row in rows})
    return _evaluate("bbox", _images(image_P), classes, _true(true_G8), _detections(detection_N8), AREA_NAMES)


def evaluate_masks(
    image_P: np.ndarray, size_P2: np.ndarray, true_G8: np.ndarray, detection_N8: np.ndarray,
    true_codes: Sequence[bytes], detection_codes: Sequence[bytes],
) -> CocoResult:  # fmt: skip
    """Runs COCOeval on masks.

    Args:
        image_P, true_G8, detection_N8: see `evaluate_boxes`.
        size_P2: height and width of each image.
        true_codes: the mask of each true box as a run-length code.
        detection_codes: the mask of each detection, whose area is the area of the detection.
    """
    from pycocotools import mask as coco_mask

    sizes = {int(image): [int(side) for side in size_2] for image, size_2 in zip(image_P, size_P2)}
    classes = sorted({int(row[1]) for rows in (true_G8, detection_N8) for row in rows})
    true, detections = _true(true_G8), _detections(detection_N8)
    for objects, codes in ((true, true_codes), (detections, detection_codes)):
        for annotation, code in zip(objects, codes):
            annotation["segmentation"] = {"size": sizes[annotation["image_id"]], "counts": code}
    for annotation in detections:
        annotation["area"] = float(coco_mask.area(annotation["segmentation"]))
    images = [{"id": image, "height": height, "width": width} for image, (height, width) in sizes.items()]
    return _evaluate("segm", images, classes, true, detections, AREA_NAMES)


def evaluate_key_points(
    image_P: np.ndarray, true: Annotations, predicted: Annotations, sigma_J: np.ndarray
) -> CocoResult:  # fmt: skip
    """Runs COCOeval on objects of one class.

    Args:
        image_P: the numbers of all images.
        true, predicted: as COCO has annotations and results, with an `id` from 1.
        sigma_J: sigmas of the key points.
    """
    return _evaluate("keypoints", _images(image_P), [1], true, predicted, POINT_AREA_NAMES, sigma_J)


def _images(image_P: np.ndarray) -> Annotations:
    return [{"id": int(image)} for image in image_P]


def _evaluate(
    kind: str, images: Annotations, classes: List[int], true: Annotations, predicted: Annotations, areas: Sequence[str],
    sigma_J: Optional[np.ndarray] = None,
) -> CocoResult:  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):  # it prints
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        truth, detected = COCO(), COCO()
        # Numbers from 1: COCOeval takes an annotation of number 0 for none.
        for coco, annotations in ((truth, true), (detected, predicted)):
            coco.dataset = {
                "images": images,
                "categories": [{"id": number} for number in classes],
                "annotations": annotations,
            }
            coco.createIndex()
        evaluation = COCOeval(truth, detected, kind)
        evaluation.params.imgIds = [image["id"] for image in images]
        if sigma_J is not None:
            evaluation.params.kpt_oks_sigmas = sigma_J
        evaluation.evaluate()
        evaluation.accumulate()
    values: Dict[str, Any] = evaluation.eval
    return CocoResult(
        values["precision"], values["recall"], np.asarray(evaluation.params.iouThrs),
        [int(maximum) for maximum in evaluation.params.maxDets], classes, areas,
    )  # fmt: skip


def _true(true_G8: np.ndarray) -> List[Dict[str, Any]]:
    return [
        {**_box(row, number), "iscrowd": int(bool(int(row[2]) & Flag.CROWD)), "ignore": 0}
        for number, row in enumerate(true_G8.tolist(), start=1)
    ]


def _detections(detection_N8: np.ndarray) -> List[Dict[str, Any]]:
    return [{**_box(row, number), "score": row[2]} for number, row in enumerate(detection_N8.tolist(), start=1)]


def _box(row: List[float], number: int) -> Dict[str, Any]:
    left, top, right, bottom, area = row[3:]
    return {
        "id": number, "image_id": int(row[0]), "category_id": int(row[1]), "area": area,
        "bbox": [left, top, right - left, bottom - top],
    }  # fmt: skip
