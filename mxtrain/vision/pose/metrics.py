"""Metrics of key points: COCO's average precision by object key point similarity (OKS), and PCK.

Legend: B batch, N objects, J key points, R rows, W columns of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Literal, Optional, Sequence, Tuple, Type

import numpy as np

from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.types import PositiveFloat
from mxtrain.types.kinds import Takes
from mxtrain.vision.detection.coco_ap import MAX_POSES, CocoResult, evaluate_key_points
from mxtrain.vision.detection.metrics import Threshold
from mxtrain.vision.images.affine import transform_points
from mxtrain.vision.kinds import KeyPoints
from mxtrain.vision.pose.key_points import KeypointMeta, Visibility

OBJECT_ROWS = 2
"""Rows of a prediction after the key points: (left, top, score) and (right, bottom, 0)."""


@dataclass(frozen=True)
class Pose:
    """Prediction for one object, in pixels of its image.

    Attributes:
        point_J3: x, y and score of each key point.
        box_4: left, top, right, bottom of the object.
        score: mean score of the key points, times the score of the box.
    """

    point_J3: np.ndarray
    box_4: np.ndarray
    score: float

    @classmethod
    def from_prediction(cls, prediction: np.ndarray) -> Pose:
        """Returns the pose of a prediction (J + 2, 3), as the task decodes it."""
        (left, top, score), (right, bottom, _) = prediction[-OBJECT_ROWS:].tolist()
        return cls(prediction[:-OBJECT_ROWS], np.array([left, top, right, bottom]), score)


@dataclass(frozen=True)
class Poses:
    """True and predicted key points of objects, in pixels of the images.

    Attributes:
        index_N: indices of the samples.
        image_N: index of each object's image.
        box_N4: left, top, right, bottom of each object.
        area_N: area of each object in pixels.
        true_NJ3: x, y, visibility.
        predicted_NJ3: x, y, score.
        score_N: score of each predicted object.
        sigma_J: sigmas of the key points in the dataset.
    """

    index_N: np.ndarray
    image_N: np.ndarray
    box_N4: np.ndarray
    area_N: np.ndarray
    true_NJ3: np.ndarray
    predicted_NJ3: np.ndarray
    score_N: np.ndarray
    sigma_J: np.ndarray

    @property
    def known_NJ(self) -> np.ndarray:
        """Returns a mask of key points with a known position."""
        return self.true_NJ3[..., 2] > Visibility.UNKNOWN

    @property
    def error_NJ(self) -> np.ndarray:
        """Returns the error of each key point, relative to the longer side of the box."""
        side_N = (self.box_N4[:, 2:] - self.box_N4[:, :2]).max(axis=1)
        distance_NJ = np.linalg.norm(self.predicted_NJ3[..., :2] - self.true_NJ3[..., :2], axis=-1)
        return distance_NJ / np.maximum(side_N, 1e-12)[:, None]


class CollectedPoses(Collected):
    """Collector of true and predicted key points. A sample has a row for the object: image, edges, area, score; and a
    row for each key point: true x, y, visibility, predicted x, y, score, sigma."""

    width: ClassVar[int] = 7

    def reset(self) -> None:
        super().reset()
        self._results: Dict[Tuple[float, ...], CocoResult] = {}

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        assert meta_B is not None
        for index, prediction, point_J3, meta in zip(index_B, prediction_B, target_B, meta_B):
            back_23 = meta[KeypointMeta.MATRIX : KeypointMeta.LEFT].reshape(2, 3)
            true_J3 = np.column_stack([transform_points(point_J3[:, :2].astype(np.float64), back_23), point_J3[:, 2]])
            self.add_object(
                int(index),
                int(meta[KeypointMeta.IMAGE]),
                meta[KeypointMeta.LEFT : KeypointMeta.AREA],
                meta[KeypointMeta.AREA],
                true_J3,
                Pose.from_prediction(prediction),
                meta[KeypointMeta.SIGMA :],
            )

    def add_object(
        self,
        index: int,
        image: int,
        box_4: Sequence[float],
        area: float,
        true_J3: np.ndarray,
        pose: Pose,
        sigma_J: Sequence[float],
    ) -> None:
        """Adds an object.

        Args:
            index: index of the sample in its split.
            image: index of its image.
            box_4, area: box and area of the object.
            true_J3: x, y, visibility.
            pose: the prediction.
            sigma_J: sigmas of the key points.
        """
        object_W = np.array([[image, *box_4, area, pose.score]])
        self.add(index, np.concatenate([object_W, np.column_stack([true_J3, pose.point_J3, sigma_J])]))

    def merge(self, rows: np.ndarray) -> None:
        super().merge(rows)
        self._results = {}

    def poses(self) -> Poses:
        """Returns all objects in the order of the samples."""
        # Columns of `samples`: index of the sample, number of the row, then those of the object or of a key point.
        rows = self.samples()
        is_first = rows[:, 1] == 0
        object_NW, count = rows[is_first], int(is_first.sum())
        point_NJW = rows[~is_first, 2:].reshape(count, -1, self.width) if count else np.zeros((0, 0, self.width))
        sigma_J = point_NJW[0, :, 6] if count else np.zeros(0)
        return Poses(
            index_N=object_NW[:, 0].astype(np.int64),
            image_N=object_NW[:, 2].astype(np.int64),
            box_N4=object_NW[:, 3:7],
            area_N=object_NW[:, 7],
            true_NJ3=point_NJW[..., :3],
            predicted_NJ3=point_NJW[..., 3:6],
            score_N=object_NW[:, 8],
            sigma_J=sigma_J,
        )

    def coco(self, sigmas: Sequence[float] = ()) -> Optional[CocoResult]:
        """Returns the result of COCO's evaluation, computed once for equal sigmas; None if nothing was collected.

        Args:
            sigmas: one for all key points or one for each; empty: those of the dataset.

        Raises:
            ValueError: the number of sigmas is neither 1 nor that of the key points.
        """
        key = tuple(sigmas)
        if key not in self._results:
            poses = self.poses()
            if not len(poses.index_N):
                return None
            sigma_J = np.broadcast_to(np.asarray(sigmas, float), poses.sigma_J.shape) if len(sigmas) else poses.sigma_J
            self._results[key] = evaluate_key_points(
                np.unique(poses.image_N), _coco_annotations(poses), _coco_results(poses), np.array(sigma_J)
            )
        return self._results[key]


def _coco_annotations(poses: Poses) -> List[Dict[str, Any]]:
    """Returns the true key points in the format of COCO's annotations."""
    edges = zip(poses.box_N4.tolist(), poses.area_N.tolist(), poses.image_N.tolist(), poses.true_NJ3)
    return [
        {
            "id": number,
            "image_id": image,
            "category_id": 1,
            "iscrowd": 0,
            "area": area,
            "bbox": [left, top, right - left, bottom - top],
            "keypoints": point_J3.ravel().tolist(),
            "num_keypoints": int((point_J3[:, 2] > Visibility.UNKNOWN).sum()),
        }
        for number, ((left, top, right, bottom), area, image, point_J3) in enumerate(edges, start=1)
    ]


def _coco_results(poses: Poses) -> List[Dict[str, Any]]:
    """Returns the predictions in the format of COCO's results."""
    results = []
    rows = zip(poses.image_N.tolist(), poses.predicted_NJ3, poses.score_N.tolist())
    for number, (image, point_J3, score) in enumerate(rows, start=1):
        # pycocotools derives the boxes of results without boxes in the same way.
        (left, top), (right, bottom) = point_J3[:, :2].min(axis=0).tolist(), point_J3[:, :2].max(axis=0).tolist()
        results.append(
            {
                "id": number,
                "image_id": image,
                "category_id": 1,
                "score": score,
                "area": (right - left) * (bottom - top),
                "bbox": [left, top, right - left, bottom - top],
                "keypoints": point_J3.ravel().tolist(),
            }
        )
    return results


class PoseMetric(HostMetric):
    """Base class of metrics of key points; NaN if there is no object that counts."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    collects: ClassVar[Type[Collected]] = CollectedPoses
    takes: ClassVar[Takes] = Takes(KeyPoints)


class OksAP(PoseMetric):
    """Average precision by object key point similarity as COCO's own tool (pycocotools) computes it: the mean over
    thresholds from 0.5 to 0.95 where no `oks` is given."""

    oks: Optional[Threshold] = None
    """Minimum object key point similarity of a hit; null: mean over ten thresholds from 0.5 to 0.95."""
    area: Literal["all", "medium", "large"] = "all"
    """Sizes of evaluated objects: medium ones have 32^2 to 96^2 pixels, large ones more."""
    sigmas: List[PositiveFloat] = []
    """Tolerances of key points: one number for all, or one for each; empty: the dataset's, for persons COCO's 17."""

    @property
    def signature(self) -> str:
        oks = "0.50:0.95" if self.oks is None else f"{self.oks:.2f}"
        sigmas = "/".join(f"{sigma:g}" for sigma in self.sigmas) or "dataset"
        return f"COCO,oks={oks},area={self.area},max_detections={MAX_POSES},sigmas={sigmas}"

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, CollectedPoses)
        coco = collected.coco(self.sigmas)
        return math.nan if coco is None else coco.precision(self.oks, self.area, MAX_POSES)


class PCK(PoseMetric):
    """Share of the key points that are found within a part of the longer side of the object's box (percentage of
    correct key points); those whose position is unknown do not count.

    Source: Yang and Ramanan, "Articulated Human Detection with Flexible Mixtures of Parts" (2013), section 7.
    """

    fraction: PositiveFloat = 0.1
    """Maximum error of a key point, relative to the longer side of the box."""
    of_single_samples: ClassVar[bool] = True

    @property
    def signature(self) -> str:
        return f"fraction={self.fraction:g},of=longer side of the box"

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, CollectedPoses)
        poses = collected.poses()
        if not poses.known_NJ.any():
            return math.nan
        return float((poses.error_NJ <= self.fraction)[poses.known_NJ].mean())
