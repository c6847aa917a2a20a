"""Joins the detections in the tiles of an image.

Legend: B batch, N detections of a tile or an image, R columns of a detection, S cells along a side of a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Tuple

import numpy as np

from mxtrain.vision.detection.box_geometry import TINY, intersection_areas

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.passes import Tile
    from mxtrain.engine.predictions import Decode
    from mxtrain.types import Batch

MATCH_SHARE = 0.5
"""Share of the smaller of two boxes that lies in the other one, from which they are one object. Source: F. C. Akyon et
al., "Slicing Aided Hyper Inference and Fine-Tuning for Small Object Detection", ICIP 2022, and the defaults of SAHI."""
EDGES = slice(2, 6)


class TiledDetections:
    """Moves detections from tiles to their image, and merges those of one object: an object that a border cuts is
    detected in parts, each in one tile, or as a whole and as a part.

    Greedy non-maximum merging: from the highest score on, a detection takes up all detections of its class in other
    tiles with which the box around all of them shares `MATCH_SHARE` of the smaller box. The result is that box, with
    the highest score. Two detections of one tile are never merged, because non-maximum suppression has compared them.

    Args:
        build_decode: builds the function that decodes outputs to detections in pixels of the tile; imports MXNet.
    """

    def __init__(self, build_decode: Callable[[], Decode]) -> None:
        self._build_decode = build_decode
        self._decode: Optional[Decode] = None

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> List[np.ndarray]:
        """Returns the detections of each tile, (N, R), without padding."""
        if self._decode is None:
            self._decode = self._build_decode()
        detection_BNR: NDArray = self._decode(outputs, batch)  # type: ignore[assignment]  # it is one array
        return [detection_NR[detection_NR[:, 0] >= 0] for detection_NR in detection_BNR.asnumpy()]

    def merge(self, size: Tuple[int, int], parts: Iterator[Tuple[Tile, np.ndarray]]) -> np.ndarray:
        """Returns the detections of an image, (N, R), highest score first; a row of class -1 if there are none."""
        moved, numbers = [], []
        for number, (tile, detection_NR) in enumerate(parts):
            left, top = tile.box[:2]
            detection_NR = detection_NR.copy()
            detection_NR[:, EDGES] += [left, top, left, top]
            moved.append(self.in_image(detection_NR, size))
            numbers.append(np.full(len(detection_NR), number))
        detection_NR, tile_N = np.concatenate(moved), np.concatenate(numbers)
        order_N = np.argsort(-detection_NR[:, 1], kind="stable")
        detection_NR, tile_N = detection_NR[order_N], tile_N[order_N]
        merged = [self.join(detection_NR[group]) for group in group_detections(detection_NR[:, :6], tile_N)]
        if not merged:  # a row of padding tells the size of the image
            return self.in_image(np.full((1, detection_NR.shape[1]), -1, np.float32), size)
        return np.stack(merged)

    def in_image(self, detection_NR: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
        """Replaces values of rows that depend on the size of the image; rows without masks have none.

        Args:
            detection_NR: detections with moved edges, which are written to.
            size: (height, width) of the image.
        """
        return detection_NR

    def join(self, detection_NR: np.ndarray) -> np.ndarray:
        """Returns the row (R,) of several detections of one object, whose first one has the highest score."""
        joined_R = detection_NR[0].copy()
        joined_R[EDGES] = around(detection_NR[:, EDGES])
        return joined_R


def around(edge_N4: np.ndarray) -> np.ndarray:
    """Returns the edges (4,) of the smallest box around several boxes."""
    return np.concatenate([edge_N4[:, :2].min(axis=0), edge_N4[:, 2:].max(axis=0)])


def group_detections(detection_N6: np.ndarray, tile_N: np.ndarray) -> List[np.ndarray]:
    """Returns the indices of the detections of each object, the highest score first.

    Args:
        detection_N6: class, score and edges, highest score first.
        tile_N: tile of each detection.
    """
    edge_N4 = detection_N6[:, EDGES].astype(np.float64)
    is_free_N = np.ones(len(detection_N6), bool)
    groups = []
    for number in range(len(detection_N6)):
        if not is_free_N[number]:
            continue
        members, box_4 = [number], edge_N4[number]
        is_free_N[number] = False
        is_candidate_N = is_free_N & (detection_N6[:, 0] == detection_N6[number, 0])
        while True:  # the box grows, and may reach further parts of a long object
            is_candidate_N &= is_free_N & ~np.isin(tile_N, tile_N[members])
            candidates = np.flatnonzero(is_candidate_N)
            matches = candidates[_shares(box_4, edge_N4[candidates]) >= MATCH_SHARE]
            if not len(matches):
                break
            members.append(int(matches[0]))
            is_free_N[matches[0]] = False
            box_4 = around(np.stack([box_4, edge_N4[matches[0]]]))
        groups.append(np.array(members))
    return groups


def _shares(edge_4: np.ndarray, edge_N4: np.ndarray) -> np.ndarray:
    """Returns the intersections of a box with others, relative to the smaller box, (N,)."""
    area_N = (edge_N4[:, 2:] - edge_N4[:, :2]).prod(axis=1)
    smaller_N = np.minimum((edge_4[2:] - edge_4[:2]).prod(), area_N)
    return intersection_areas(edge_4[None], edge_N4)[0] / np.maximum(smaller_N, TINY)
