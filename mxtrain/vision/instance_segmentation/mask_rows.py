"""Masks of objects as small images of the inside of their boxes, and as masks of whole images.

A true mask has `TRUE_SIDE` x `TRUE_SIDE` cells, whatever the size of the box. Its row has the columns of `boxes.Column`
and then the cells. Predicted masks have `PREDICTED_SIDE` x `PREDICTED_SIDE` cells, or as many as the network returns.

The mask of the visible part of a box is resampled from polygons or bitmaps in one step. 56 x 56 cells are enough to
train a head of 28 x 28; masks of whole images would take five times the memory. The true masks of a validation stay on
the host as run-length codes of whole images, because cells are not exact enough for metrics.

Legend: M boxes of an image, D columns of `boxes.Column`, N detections, S cells along a side, h, w size of an image.
"""

from __future__ import annotations

from typing import List, Sequence

import numpy as np

from mxtrain.vision.detection.boxes import NUM_COLUMNS, BoxAnnotations, is_trained_on
from mxtrain.vision.images.affine import inverse, transform_points
from mxtrain.vision.images.transforms.lazy_image import GeometryStep
from mxtrain.vision.instance_segmentation.drawn_masks import paste_masks

TRUE_SIDE = 56
PREDICTED_SIDE = 28
TRUE_COLUMNS = NUM_COLUMNS + TRUE_SIDE**2
"""Number of columns in the row of an object."""
DETECTION_COLUMNS = 8
"""Number of columns of a prediction before its mask: class, score, left, top, right, bottom, height and width of the
image."""
META_COLUMNS = 5
"""Number of columns of `Batch.meta`: a row of `boxes.ResizeTransform`, and a tuple of the true masks of the sample as
COCO's run-length codes, which is empty in training."""


def append_masks(box_MD: np.ndarray, mask_MSS: np.ndarray) -> np.ndarray:
    """Appends masks (M, S, S) to the rows of objects (M, D). Returns (M, D + S * S)."""
    _, height, width = mask_MSS.shape
    return np.concatenate([box_MD, mask_MSS.reshape(-1, height * width)], axis=1)


class InstanceAnnotations(BoxAnnotations):
    """Boxes with masks. Masks are resampled by nearest neighbour. If an image is rotated or sheared, the new box
    encloses the moved mask, not the moved corners of the old box."""

    def moved(self, row_MD: np.ndarray, step: GeometryStep) -> np.ndarray:
        """Returns the rows with the edges of the moved boxes; after a rotation or a shear, those around the moved
        masks."""
        moved_MD = super().moved(row_MD, step)
        if (step.matrix_23[:, :2] * (1 - np.eye(2)) == 0).all():
            return moved_MD
        for row_D, moved_D in zip(row_MD, moved_MD):
            line_N, column_N = np.nonzero(_mask(row_D))
            if len(line_N):
                # The corners of all cells that belong to the object, in pixels.
                begin_2, cell_2 = row_D[:2], (row_D[2:4] - row_D[:2]) / TRUE_SIDE
                corners = [np.column_stack([column_N + x, line_N + y]) for y in (0, 1) for x in (0, 1)]
                point_P2 = transform_points(begin_2 + np.concatenate(corners) * cell_2, step.matrix_23)
                moved_D[:2], moved_D[2:4] = point_P2.min(axis=0), point_P2.max(axis=0)
        return moved_MD

    def cut(self, moved_MD: np.ndarray, row_MD: np.ndarray, step: GeometryStep) -> np.ndarray:
        """Resamples masks to the clipped boxes, and removes objects without a visible cell. Crowd regions are kept:
        their masks are always empty."""
        back_23 = inverse(step.matrix_23)
        centre_S = (np.arange(TRUE_SIDE) + 0.5) / TRUE_SIDE
        centre_SS2 = np.stack(np.meshgrid(centre_S, centre_S), axis=-1)  # relative to the box
        for row_D, moved_D in zip(row_MD, moved_MD):
            point_SS2 = transform_points(moved_D[:2] + centre_SS2 * (moved_D[2:4] - moved_D[:2]), back_23)
            position_SS2 = (point_SS2 - row_D[:2]) / (row_D[2:4] - row_D[:2]) * TRUE_SIDE
            cell_SS2 = np.floor(position_SS2).astype(np.int64)
            is_inside_SS = ((cell_SS2 >= 0) & (cell_SS2 < TRUE_SIDE)).all(axis=-1)
            cell_SS2 = cell_SS2.clip(0, TRUE_SIDE - 1)
            moved_D[NUM_COLUMNS:] = (_mask(row_D)[cell_SS2[..., 1], cell_SS2[..., 0]] & is_inside_SS).ravel()
        is_kept_M = moved_MD[:, NUM_COLUMNS:].any(axis=1) | ~is_trained_on(moved_MD)
        return moved_MD[is_kept_M]


def _mask(row_D: np.ndarray) -> np.ndarray:
    """Returns the mask (S, S) in the row of an object."""
    return row_D[NUM_COLUMNS:].reshape(TRUE_SIDE, TRUE_SIDE) > 0


def build_meta(fitted_B4: np.ndarray, codes_B: Sequence[Sequence[bytes]]) -> np.ndarray:
    """Builds `Batch.meta`, (B, META_COLUMNS).

    Args:
        fitted_B4: rows of `ResizeTransform`.
        codes_B: run-length codes of the masks of each sample's objects, in the order of their rows.
    """
    # This array of objects never leaves the process: workers exchange codes as numbers, so nothing is pickled.
    meta_BF = np.empty((len(fitted_B4), META_COLUMNS), object)
    meta_BF[:, : META_COLUMNS - 1] = fitted_B4
    for row, codes in enumerate(codes_B):
        meta_BF[row, -1] = tuple(codes)
    return meta_BF


def detection_masks(detection_NR: np.ndarray) -> List[np.ndarray]:
    """Returns the masks (h, w) of the predictions (N, R) for an image, in pixels of the image."""
    if not len(detection_NR):
        return []
    side = round((detection_NR.shape[1] - DETECTION_COLUMNS) ** 0.5)
    mask_NSS = detection_NR[:, DETECTION_COLUMNS:].reshape(-1, side, side)
    return paste_masks(mask_NSS, detection_NR[:, 2:6], (int(detection_NR[0, 6]), int(detection_NR[0, 7])))


def encode_masks(masks: Sequence[np.ndarray]) -> List[bytes]:
    """Encodes masks (h, w) of one image as COCO's run-length codes: lengths of runs, column by column, as text."""
    from pycocotools import mask as coco_mask

    if not len(masks):
        return []
    stacked_Nwh = np.ascontiguousarray(np.stack([np.asarray(mask_hw, np.uint8).T for mask_hw in masks]))
    return [bytes(code["counts"]) for code in coco_mask.encode(stacked_Nwh.T)]  # (h, w, N), column by column


def decode_mask(code: bytes, size: Sequence[int]) -> np.ndarray:
    """Decodes a run-length code of `encode_masks` to a mask (h, w).

    Args:
        code: the code.
        size: (height, width).
    """
    from pycocotools import mask as coco_mask

    return coco_mask.decode({"size": list(size), "counts": code})
