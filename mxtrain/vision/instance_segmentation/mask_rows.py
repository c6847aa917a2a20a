"""Masks of objects as small images of the inside of their boxes, and as masks of whole images.

A true mask has `TRUE_SIDE` x `TRUE_SIDE` cells, whatever the size of the box. Its row has the columns of `boxes.Column`
and then the cells. Predicted masks have `PREDICTED_SIDE` x `PREDICTED_SIDE` cells, or as many as the network returns.

Legend: M boxes of an image, D columns of `boxes.Column`, N detections, S cells along a side, h, w size of an image.
"""

from __future__ import annotations

from typing import List, Sequence

import numpy as np

from mxtrain.vision.detection.boxes import NUM_COLUMNS, BoxAnnotations, is_trained_on
from mxtrain.vision.images.affine import inverse, transform_points
from mxtrain.vision.images.transforms.lazy_image import GeometryStep
from mxtrain.vision.instance_segmentation.drawn_masks import in_image

TRUE_SIDE = 56
PREDICTED_SIDE = 28
TRUE_COLUMNS = NUM_COLUMNS + TRUE_SIDE**2
"""Number of columns in the row of an object."""
DETECTION_COLUMNS = 8
"""Number of columns of a prediction before its mask: class, score, left, top, right, bottom, height and width of the
image."""
FACTS = 5
"""Number of columns of `Batch.meta`: a row of `boxes.ResizeTransform`, and the masks of the sample's objects as COCO's
run-length codes; no codes in training."""


def with_masks(box_MD: np.ndarray, mask_MSS: np.ndarray) -> np.ndarray:
    """Appends masks to the rows of objects, (M, D + S * S)."""
    _, height, width = mask_MSS.shape
    return np.concatenate([box_MD, mask_MSS.reshape(-1, height * width)], axis=1)


class InstanceAnnotations(BoxAnnotations):
    """Boxes with masks. Masks are resampled by nearest neighbour. If an image is rotated or sheared, the new box
    encloses the moved mask, not the moved corners of the old box."""

    def moved(self, row_MD: np.ndarray, step: GeometryStep) -> np.ndarray:
        """See `BoxAnnotations.moved`."""
        moved_MD = super().moved(row_MD, step)
        if (step.matrix_23[:, :2] * (1 - np.eye(2)) == 0).all():
            return moved_MD
        for row_D, moved_D in zip(row_MD, moved_MD):
            line_N, column_N = np.nonzero(_mask(row_D))
            if len(line_N):
                begin_2, side_2 = row_D[:2], (row_D[2:4] - row_D[:2]) / TRUE_SIDE
                shares_N2 = [np.column_stack([column_N + x, line_N + y]) for y in (0, 1) for x in (0, 1)]
                place_N2 = transform_points(begin_2 + np.concatenate(shares_N2) * side_2, step.matrix_23)
                moved_D[:2], moved_D[2:4] = place_N2.min(axis=0), place_N2.max(axis=0)
        return moved_MD

    def cut(self, moved_MD: np.ndarray, row_MD: np.ndarray, step: GeometryStep) -> np.ndarray:
        """See `BoxAnnotations.cut`; objects without a visible cell are removed. Masks of crowds are empty."""
        back_23 = inverse(step.matrix_23)
        middle_S = (np.arange(TRUE_SIDE) + 0.5) / TRUE_SIDE
        share_SS2 = np.stack(np.meshgrid(middle_S, middle_S), axis=-1)
        for row_D, moved_D in zip(row_MD, moved_MD):
            place_SS2 = transform_points(moved_D[:2] + share_SS2 * (moved_D[2:4] - moved_D[:2]), back_23)
            square_SS2 = (place_SS2 - row_D[:2]) / (row_D[2:4] - row_D[:2]) * TRUE_SIDE
            at_SS2 = np.floor(square_SS2).astype(np.int64)
            is_inside_SS = ((at_SS2 >= 0) & (at_SS2 < TRUE_SIDE)).all(axis=-1)
            at_SS2 = at_SS2.clip(0, TRUE_SIDE - 1)
            moved_D[NUM_COLUMNS:] = (_mask(row_D)[at_SS2[..., 1], at_SS2[..., 0]] & is_inside_SS).ravel()
        stays_M = moved_MD[:, NUM_COLUMNS:].any(axis=1) | ~is_trained_on(moved_MD)
        return moved_MD[stays_M]


def _mask(row_D: np.ndarray) -> np.ndarray:
    return row_D[NUM_COLUMNS:].reshape(TRUE_SIDE, TRUE_SIDE) > 0


def facts(fitted_B4: np.ndarray, codes_B: Sequence[Sequence[bytes]]) -> np.ndarray:
    """Builds `Batch.meta`, (B, FACTS).

    Args:
        fitted_B4: rows of `ResizeTransform`.
        codes_B: run-length codes of the masks of each sample's objects, in the order of their rows.
    """
    fact_BF = np.empty((len(fitted_B4), FACTS), object)
    fact_BF[:, : FACTS - 1] = fitted_B4
    for row, codes in enumerate(codes_B):
        fact_BF[row, -1] = tuple(codes)
    return fact_BF


def detection_masks(detection_NR: np.ndarray) -> List[np.ndarray]:
    """Returns the masks (h, w) of the predictions for an image."""
    if not len(detection_NR):
        return []
    side = round((detection_NR.shape[1] - DETECTION_COLUMNS) ** 0.5)
    mask_NSS = detection_NR[:, DETECTION_COLUMNS:].reshape(-1, side, side)
    return in_image(mask_NSS, detection_NR[:, 2:6], (int(detection_NR[0, 6]), int(detection_NR[0, 7])))


def codes_of(masks: Sequence[np.ndarray]) -> List[bytes]:
    """Encodes masks (h, w) of one image as COCO's run-length codes: lengths of runs, column by column, as text."""
    from pycocotools import mask as coco_mask

    if not len(masks):
        return []
    stacked_Nwh = np.ascontiguousarray(np.stack([np.asarray(mask_hw, np.uint8).T for mask_hw in masks]))
    return [bytes(one["counts"]) for one in coco_mask.encode(stacked_Nwh.T)]  # (h, w, N), column by column


def mask_of(code: bytes, size: Sequence[int]) -> np.ndarray:
    """Returns the mask (h, w) of one of COCO's codes that `codes_of` made."""
    from pycocotools import mask as coco_mask

    return coco_mask.decode({"size": list(size), "counts": code})
