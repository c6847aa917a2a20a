"""Average precision of boxes, as PASCAL VOC and COCO define it.

Legend: N detections, G true boxes, R rows, D columns of `boxes.Column`, W columns of a row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, ClassVar, Dict, Literal, Mapping, Optional, Tuple, Type

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.types import Fraction
from mxtrain.types.kinds import Takes
from mxtrain.vision.detection.box_geometry import intersections_over_unions
from mxtrain.vision.detection.boxes import NUM_COLUMNS, Column, Flag, ResizeTransform, is_box, scaled
from mxtrain.vision.detection.coco_ap import evaluate_boxes
from mxtrain.vision.kinds import Boxes, Masks

if TYPE_CHECKING:
    from mxtrain.vision.detection.coco_ap import CocoResult

IMAGE, TRUE, DETECTED = 0, 1, 2
"""Kinds of rows: images, true boxes and detections. Each image has a row, so that images without boxes are known."""


def _require_threshold(iou: float) -> float:
    if round(iou, 6) not in THRESHOLDS:
        raise ValueError(f"COCO has the thresholds {', '.join(map(str, THRESHOLDS))}, not {iou:g}")
    return iou


THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
Threshold = Annotated[float, pydantic.AfterValidator(_require_threshold)]


class CollectedBoxes(Collected):
    """Collector of true boxes and detections in pixels of the original images: kind, class, flags or score, edges,
    area."""

    width: ClassVar[int] = 8

    def reset(self) -> None:
        super().reset()
        self._results: Dict[str, object] = {}

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        assert meta_B is not None
        for index, detection_N6, true_MD, meta in zip(index_B, prediction_B, target_B, meta_B):
            # Columns after the first six are masks, if there are any.
            self.add_image(int(index), true_boxes(true_MD, meta), detection_N6[detection_N6[:, 0] >= 0, :6])

    def add_image(self, index: int, true_GD: np.ndarray, detection_N6: np.ndarray) -> None:
        """Adds an image.

        Args:
            index: index of the sample in its split.
            true_GD: true boxes, with the columns of `boxes.Column`.
            detection_N6: class, score and edges of each detection.
        """
        self.add(index, self.rows_of(true_GD, detection_N6))

    def rows_of(self, true_GD: np.ndarray, detection_N6: np.ndarray) -> np.ndarray:
        """Returns the rows of an image (R, W): one of kind `IMAGE`, then its true boxes and its detections; see
        `add_image`."""
        true_GW = np.column_stack([np.full(len(true_GD), TRUE), true_GD[:, 4:6], true_GD[:, :4], true_GD[:, 6]])
        area_N = (detection_N6[:, 4:] - detection_N6[:, 2:4]).prod(axis=1)
        detection_NW = np.column_stack([np.full(len(detection_N6), DETECTED), detection_N6, area_N])
        return np.concatenate([np.zeros((1, self.width)), true_GW, detection_NW])

    def merge(self, rows: np.ndarray) -> None:
        super().merge(rows)
        self._results = {}

    def boxes(self) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the indices of images; true boxes (G, 8): image, class, flags, edges, area; and detections (N, 8):
        image, class, score, edges, area."""
        # Columns of `samples`: image, number of the row, then those of `rows_of`, which begin with the kind.
        rows = self.samples()
        image_R, kind_R = rows[:, 0], rows[:, 2]
        row_R8 = np.concatenate([image_R[:, None], rows[:, 3:]], axis=1)
        return image_R[kind_R == IMAGE].astype(np.int64), row_R8[kind_R == TRUE], row_R8[kind_R == DETECTED]

    def coco(self) -> CocoResult:
        """Returns the result of COCO's evaluation; computed once for all metrics."""
        if "coco" not in self._results:
            self._results["coco"] = evaluate_boxes(*self.boxes())
        return self._results["coco"]  # type: ignore[return-value]


def true_boxes(true_MD: np.ndarray, meta: np.ndarray) -> np.ndarray:
    """Returns the boxes of a sample in pixels of its image, (G, D), with the columns of `boxes.Column`, without
    padding.

    Args:
        true_MD: boxes in pixels of the network's input, with padding.
        meta: row of `Batch.meta`, which starts with a row of `ResizeTransform`.
    """
    fitted = ResizeTransform.of_row(meta[:4].tolist())
    return scaled(true_MD[is_box(true_MD), :NUM_COLUMNS], 1 / fitted.scale_x, 1 / fitted.scale_y)


class BoxMetric(HostMetric):
    """Base class of metrics of boxes; NaN if the images contain no object that counts."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    collects: ClassVar[Type[Collected]] = CollectedBoxes
    takes: ClassVar[Takes] = Takes(Boxes, Masks)


class VocAP(BoxMetric):
    """Mean over classes of the average precision, as PASCAL VOC's development kit computes it.

    Each detection is compared with the true box of the highest intersection over union. It is wrong if a higher-scoring
    detection has already matched that box. Difficult objects are ignored. A class without objects is left out.

    Source: Everingham et al., "The Pascal Visual Object Classes (VOC) Challenge" (2010), section 4.2.
    """

    iou: Fraction = 0.5
    """Minimum intersection over union of a detection with an object."""
    interpolation: Literal["area", "11_point"] = "area"
    """area: under the whole curve, as VOC does since 2010; 11_point: mean of 11 precisions, as in VOC 2007."""

    @property
    def signature(self) -> str:
        return f"VOC,iou={self.iou:g},interpolation={self.interpolation}"

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, CollectedBoxes)
        _, true_G8, detection_N8 = collected.boxes()
        results = self.by_class(true_G8, detection_N8)
        return float(np.mean([result[0] for result in results.values()])) if results else math.nan

    def by_class(
        self, true_G8: np.ndarray, detection_N8: np.ndarray
    ) -> Mapping[int, Tuple[float, np.ndarray, np.ndarray, np.ndarray]]:
        """Computes average precision and the curves of recall, precision and score of each class that has objects.

        Args:
            true_G8, detection_N8: true boxes and detections, see `CollectedBoxes.boxes`.
        """
        results = {}
        for number in np.unique(true_G8[:, 1]):
            true, detections = true_G8[true_G8[:, 1] == number], detection_N8[detection_N8[:, 1] == number]
            count = int(((true[:, 2].astype(int) & (Flag.DIFFICULT | Flag.CROWD)) == 0).sum())
            if count:
                is_hit_N, score_N, _ = voc_matches(true, detections, self.iou)
                results[int(number)] = self._curve(is_hit_N, score_N, count)
        return results

    def _curve(
        self, is_hit_N: np.ndarray, score_N: np.ndarray, count: int
    ) -> Tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        """Returns average precision, recalls, precisions and scores of a class with `count` objects; see `by_class`."""
        hits_N = np.cumsum(is_hit_N)
        recall_N, precision_N = hits_N / count, hits_N / np.arange(1, len(hits_N) + 1)
        if self.interpolation == "11_point":
            # Thresholds as the development kit's 0:0.1:1, so that 0.3 is not 0.30000000000000004.
            best = [precision_N[recall_N >= step / 10].max(initial=0.0) for step in range(11)]
            return float(np.mean(best)), recall_N, precision_N, score_N
        recall = np.concatenate([[0.0], recall_N, [1.0]])
        precision = np.maximum.accumulate(np.concatenate([[0.0], precision_N, [0.0]])[::-1])[::-1]
        return float(np.sum(np.diff(recall) * precision[1:])), recall_N, precision_N, score_N


Overlap = Callable[[int, np.ndarray], np.ndarray]
"""Function of the index of a detection and the indices of true boxes that returns their intersections over union."""


def voc_matches(
    true_G8: np.ndarray, detection_N8: np.ndarray, min_iou: float, overlap: Optional[Overlap] = None
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns hits, scores and indices of the detections of one class, highest score first. Detections of difficult
    objects are ignored.

    Args:
        true_G8, detection_N8: true boxes and detections of one class, see `CollectedBoxes.boxes`.
        min_iou: smallest intersection over union of a hit.
        overlap: computes the intersection over union; None: that of boxes.
    """
    overlap = overlap or box_overlap(true_G8, detection_N8)
    order_N = np.argsort(-detection_N8[:, 2], kind="stable")
    detection_N8 = detection_N8[order_N]
    is_hit_N, is_used_N = np.zeros(len(detection_N8), bool), np.ones(len(detection_N8), bool)
    is_matched_G = np.zeros(len(true_G8), bool)
    true_of_image: Dict[float, np.ndarray] = {
        image: np.flatnonzero(true_G8[:, 0] == image) for image in np.unique(true_G8[:, 0])
    }
    for index, detection in enumerate(detection_N8):
        candidates = true_of_image.get(detection[0])
        if candidates is None:
            continue
        iou_g = overlap(int(order_N[index]), candidates)
        best = int(iou_g.argmax())
        if iou_g[best] < min_iou:
            continue
        number = candidates[best]
        if int(true_G8[number, 2]) & (Flag.DIFFICULT | Flag.CROWD):
            is_used_N[index] = False
        elif not is_matched_G[number]:
            is_hit_N[index] = is_matched_G[number] = True
    return is_hit_N[is_used_N], detection_N8[is_used_N, 2], order_N[is_used_N]


def box_overlap(true_G8: np.ndarray, detection_N8: np.ndarray) -> Overlap:
    """Returns the overlap function of boxes that `CollectedBoxes.boxes` returned."""
    return lambda number, candidates: intersections_over_unions(
        detection_N8[number, None, 3:7], true_G8[candidates, 3:7]
    )[0]


def best_matches(box_B4: np.ndarray, true_BMD: np.ndarray, min_iou: float = 0.5) -> np.ndarray:
    """Returns the class of the object that overlaps most with the box of each image, (B,); -1 if none overlaps enough.

    Args:
        box_B4: one box for each image.
        true_BMD: true boxes in the same pixels, with the columns of `boxes.Column`.
        min_iou: smallest intersection over union of a match.
    """
    class_B = np.full(len(box_B4), -1)
    for row, (box_4, true_MD) in enumerate(zip(box_B4, true_BMD)):
        true_GD = true_MD[is_box(true_MD)]
        iou_G = intersections_over_unions(box_4[None], true_GD[:, :4])[0]
        if len(iou_G) and iou_G.max() >= min_iou:
            class_B[row] = int(true_GD[iou_G.argmax(), Column.CLASS])
    return class_B


class CocoAP(BoxMetric):
    """Average precision as COCO's own tool (pycocotools) computes it: the mean over classes, and over thresholds from
    0.5 to 0.95 where no `iou` is given."""

    iou: Optional[Threshold] = None
    """Minimum intersection over union of a detection with an object; null: mean over ten thresholds from 0.5 to
    0.95."""
    area: Literal["all", "small", "medium", "large"] = "all"
    """Sizes of evaluated objects: small ones have less than 32^2 pixels, large ones more than 96^2."""
    max_detections: Literal[1, 10, 100] = 100
    """Maximum number of detections per image that are evaluated, highest score first."""

    @property
    def signature(self) -> str:
        iou = "0.50:0.95" if self.iou is None else f"{self.iou:.2f}"
        return f"COCO,iou={iou},area={self.area},max_detections={self.max_detections}"

    def compute(self, collected: Collected) -> float:
        return self.result(collected).precision(self.iou, self.area, self.max_detections)

    def result(self, collected: Collected) -> CocoResult:
        """Returns the result of COCO's evaluation."""
        assert isinstance(collected, CollectedBoxes)
        return collected.coco()


class CocoAR(CocoAP):
    """Average recall as COCO's own tool computes it: the mean over classes and thresholds of the highest recall."""

    def compute(self, collected: Collected) -> float:
        return self.result(collected).recall(self.iou, self.area, self.max_detections)
