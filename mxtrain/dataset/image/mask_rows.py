"""Masks of things as small pictures of what is inside their boxes, and in their pictures.

A true mask is `TRUE_SIDE` squares high and wide, whatever the size of the box: a row of `boxes.Column` with these
squares behind it. A network's are `FOUND_SIDE` squares high and wide, or as many as it has.

Legend: M boxes of a picture, D columns of `boxes.Column`, N detections, S squares along a side, h, w of a picture.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import numpy as np

from mxtrain.dataset.image.boxes import NUM_COLUMNS

TRUE_SIDE = 56
FOUND_SIDE = 28
TRUE_COLUMNS = NUM_COLUMNS + TRUE_SIDE**2
"""Of the row of a thing."""
FOUND_COLUMNS = 8
"""Of a prediction, before its mask: class, score, left, top, right, bottom, height and width of the picture."""
FACTS = 5
"""Of `Batch.meta`: those of `boxes.Fitted`, and the masks of the sample's things as COCO's codes; none in training."""


def with_masks(box_MD: np.ndarray, mask_MSS: np.ndarray) -> np.ndarray:
    """Rows of things, (M, D + S * S)."""
    _, height, width = mask_MSS.shape
    return np.concatenate([box_MD, mask_MSS.reshape(-1, height * width)], axis=1)


def facts(fitted_B4: np.ndarray, codes_B: Sequence[Sequence[bytes]]) -> np.ndarray:
    """`Batch.meta`, (B, FACTS).

    Args:
        fitted_B4: rows of `Fitted`.
        codes_B: of the masks of each sample's things, in the order of their rows.
    """
    fact_BF = np.empty((len(fitted_B4), FACTS), object)
    fact_BF[:, : FACTS - 1] = fitted_B4
    for row, codes in enumerate(codes_B):
        fact_BF[row, -1] = tuple(codes)
    return fact_BF


def in_picture(mask_NSS: np.ndarray, edge_N4: np.ndarray, size: Tuple[int, int]) -> List[np.ndarray]:
    """The masks of things of a picture, (h, w) each, 0 or 1, by linear interpolation between the middles of squares.

    Args:
        mask_NSS: of their boxes, from 0 to 1.
        edge_N4: left, top, right, bottom of the boxes.
        size: (height, width) of the picture.
    """
    side = mask_NSS.shape[1]
    weight_NhS, weight_NwS = (_weights(edge_N4[:, [at, at + 2]], size[1 - at], side) for at in (1, 0))
    found = []
    for mask_SS, weight_hS, weight_wS in zip(mask_NSS.astype(np.float32), weight_NhS, weight_NwS):
        lines, columns = (np.flatnonzero(weight_LS.any(axis=1)) for weight_LS in (weight_hS, weight_wS))
        mask_hw = np.zeros(size, np.uint8)
        if len(lines) and len(columns):
            part = slice(lines[0], lines[-1] + 1), slice(columns[0], columns[-1] + 1)
            mask_hw[part] = weight_hS[part[0]] @ mask_SS @ weight_wS[part[1]].T >= 0.5
        found.append(mask_hw)
    return found


def _weights(edge_N2: np.ndarray, length: int, side: int) -> np.ndarray:
    """How much each square counts in each of a picture's lines, (N, length, S): nothing where the middle of the line is
    not in the box.

    Args:
        edge_N2: where each box begins and ends.
        length: lines of the picture.
        side: S.
    """
    middle_L, square_S = np.arange(length, dtype=np.float32) + 0.5, np.arange(side, dtype=np.float32)
    begin_N1, end_N1 = (edge_N2[:, at, None].astype(np.float32) for at in (0, 1))
    at_NL = (middle_L - begin_N1) * (side / np.maximum(end_N1 - begin_N1, 1e-6)) - 0.5
    weight_NLS = np.maximum(0, 1 - np.abs(at_NL.clip(0, side - 1)[..., None] - square_S))
    weight_NLS[(middle_L < begin_N1) | (middle_L >= end_N1)] = 0
    return weight_NLS


def found_masks(found_NR: np.ndarray) -> List[np.ndarray]:
    """The masks (h, w) of a picture's predictions."""
    if not len(found_NR):
        return []
    side = round((found_NR.shape[1] - FOUND_COLUMNS) ** 0.5)
    mask_NSS = found_NR[:, FOUND_COLUMNS:].reshape(-1, side, side)
    return in_picture(mask_NSS, found_NR[:, 2:6], (int(found_NR[0, 6]), int(found_NR[0, 7])))


def codes_of(masks: Sequence[np.ndarray]) -> List[bytes]:
    """Masks (h, w) of one picture as COCO's codes: lengths of runs, column by column, as text."""
    from pycocotools import mask as coco_mask

    if not len(masks):
        return []
    stacked_Nwh = np.ascontiguousarray(np.stack([np.asarray(mask_hw, np.uint8).T for mask_hw in masks]))
    return [bytes(one["counts"]) for one in coco_mask.encode(stacked_Nwh.T)]  # (h, w, N), column by column


def mask_of(code: bytes, size: Sequence[int]) -> np.ndarray:
    """The mask (h, w) of one of COCO's codes that `codes_of` made."""
    from pycocotools import mask as coco_mask

    return coco_mask.decode({"size": list(size), "counts": code})
