"""Evaluates boxes, masks and key points with COCO's own tool, pycocotools, in memory and without its printed output.

Legend: P images, G objects, N detections; for results T thresholds, R recalls, K classes, A ranges of areas, M numbers
of detections.
"""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.vision.detection.boxes import Flag

AREA_NAMES = ("all", "small", "medium", "large")
POINT_AREA_NAMES = ("all", "medium", "large")
"""Ranges of areas for key points: COCO does not annotate key points of small objects."""
MAX_POSES = 20
"""Maximum number of poses per image that COCO evaluates, highest score first."""
Annotations = List[Dict[str, Any]]
"""Objects in the format of COCO's annotations or results."""


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
        """Returns the mean recall; arguments as in `precision`."""
        return self._mean(self.recall_TKAM, iou, area, max_detections, number)

    def figures(self, figures: Sequence[Tuple[str, Optional[float], str, int]]) -> List[Any]:
        """Returns some of the figures of COCO's summary; "" for undefined ones.

        Args:
            figures: name, which begins with AP or AR; threshold, or None for all; name of the range of object areas;
                and maximum number of detections per image.
        """
        values = [
            (self.precision if name.startswith("AP") else self.recall)(iou, area, max_detections)
            for name, iou, area, max_detections in figures
        ]
        return ["" if math.isnan(value) else value for value in values]

    def _mean(
        self, values: np.ndarray, iou: Optional[float], area: str, max_detections: int, number: Optional[int]
    ) -> float:
        part = values[..., self.areas.index(area), self.max_detections.index(max_detections)]
        if iou is not None:
            part = part[np.isclose(self.iou_T, iou)]
        if number is not None:
            part = part[..., [self.class_K.index(number)]] if number in self.class_K else part[..., :0]
        # COCOeval writes -1 for a class without objects.
        part = part[part > -1]
        return float(part.mean()) if part.size else math.nan


def evaluate_boxes(image_P: np.ndarray, true_G8: np.ndarray, detection_N8: np.ndarray) -> CocoResult:
    """Runs COCOeval on boxes.

    Args:
        image_P: indices of all images, including images without boxes.
        true_G8: true boxes: image, class, flags, left, top, right, bottom, area.
        detection_N8: detections: image, class, score, left, top, right, bottom, area.
    """
    classes = sorted({int(row[1]) for rows in (true_G8, detection_N8) for row in rows})
    return _evaluate("bbox", _images(image_P), classes, _annotations(true_G8), _results(detection_N8), AREA_NAMES)


def evaluate_masks(
    image_P: np.ndarray,
    size_P2: np.ndarray,
    true_G8: np.ndarray,
    detection_N8: np.ndarray,
    true_codes: Sequence[bytes],
    detection_codes: Sequence[bytes],
) -> CocoResult:
    """Runs COCOeval on masks.

    Args:
        image_P, true_G8, detection_N8: see `evaluate_boxes`.
        size_P2: height and width of each image.
        true_codes: run-length code of the mask of each object.
        detection_codes: run-length code of the mask of each detection. The area of a detection is that of its mask.
    """
    from pycocotools import mask as coco_mask

    sizes = {int(image): [int(side) for side in size_2] for image, size_2 in zip(image_P, size_P2)}
    classes = sorted({int(row[1]) for rows in (true_G8, detection_N8) for row in rows})
    true, detections = _annotations(true_G8), _results(detection_N8)
    for objects, codes in ((true, true_codes), (detections, detection_codes)):
        for annotation, code in zip(objects, codes):
            annotation["segmentation"] = {"size": sizes[annotation["image_id"]], "counts": code}
    for annotation in detections:
        annotation["area"] = float(coco_mask.area(annotation["segmentation"]))
    images = [{"id": image, "height": height, "width": width} for image, (height, width) in sizes.items()]
    return _evaluate("segm", images, classes, true, detections, AREA_NAMES)


def evaluate_key_points(
    image_P: np.ndarray, true: Annotations, predicted: Annotations, sigma_J: np.ndarray
) -> CocoResult:
    """Runs COCOeval on the key points of objects of one class.

    Args:
        image_P: indices of all images.
        true, predicted: objects in the format of COCO's annotations and results, with an `id` from 1.
        sigma_J: sigmas of the key points.
    """
    return _evaluate("keypoints", _images(image_P), [1], true, predicted, POINT_AREA_NAMES, sigma_J)


def _images(image_P: np.ndarray) -> Annotations:
    return [{"id": int(image)} for image in image_P]


def _evaluate(
    kind: str,
    images: Annotations,
    classes: List[int],
    true: Annotations,
    predicted: Annotations,
    areas: Sequence[str],
    sigma_J: Optional[np.ndarray] = None,
) -> CocoResult:
    with contextlib.redirect_stdout(io.StringIO()):  # COCOeval prints its progress
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        truth, detected = COCO(), COCO()
        # Ids start at 1: COCOeval takes the id 0 for no match.
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
        values["precision"],
        values["recall"],
        np.asarray(evaluation.params.iouThrs),
        [int(maximum) for maximum in evaluation.params.maxDets],
        classes,
        areas,
    )


def _annotations(true_G8: np.ndarray) -> Annotations:
    return [
        {**_annotation(row, number), "iscrowd": int(bool(int(row[2]) & Flag.CROWD)), "ignore": 0}
        for number, row in enumerate(true_G8.tolist(), start=1)
    ]


def _results(detection_N8: np.ndarray) -> Annotations:
    return [{**_annotation(row, number), "score": row[2]} for number, row in enumerate(detection_N8.tolist(), start=1)]


def _annotation(row: List[float], number: int) -> Dict[str, Any]:
    left, top, right, bottom, area = row[3:]
    return {
        "id": number,
        "image_id": int(row[0]),
        "category_id": int(row[1]),
        "area": area,
        "bbox": [left, top, right - left, bottom - top],
    }
