"""Pastes masks of boxes into images. Exported folders have a copy of this module.

Legend: N detections, S cells along a side of a mask, h, w size of an image, L lines or columns of an image.
"""

from __future__ import annotations

from typing import List, Tuple

import numpy as np


def paste_masks(mask_NSS: np.ndarray, edge_N4: np.ndarray, size: Tuple[int, int]) -> List[np.ndarray]:
    """Resizes masks to their boxes, by bilinear interpolation between the centres of cells. Returns the masks of the
    whole image, (h, w) each, uint8: 1 from 0.5 on, otherwise 0.

    Args:
        mask_NSS: masks inside the boxes, from 0 to 1.
        edge_N4: left, top, right, bottom of the boxes.
        size: (height, width) of the image.
    """
    side = mask_NSS.shape[1]
    weight_NhS, weight_NwS = (_weights(edge_N4[:, [axis, axis + 2]], size[1 - axis], side) for axis in (1, 0))
    masks = []
    for mask_SS, weight_hS, weight_wS in zip(mask_NSS.astype(np.float32), weight_NhS, weight_NwS):
        lines, columns = (np.flatnonzero(weight_LS.any(axis=1)) for weight_LS in (weight_hS, weight_wS))
        mask_hw = np.zeros(size, np.uint8)
        if len(lines) and len(columns):
            part = slice(lines[0], lines[-1] + 1), slice(columns[0], columns[-1] + 1)
            mask_hw[part] = weight_hS[part[0]] @ mask_SS @ weight_wS[part[1]].T >= 0.5
        masks.append(mask_hw)
    return masks


def _weights(edge_N2: np.ndarray, length: int, side: int) -> np.ndarray:
    """Returns the weight of each cell in each line of the image, (N, L, S); 0 if the centre of the line is outside of
    the box.

    Args:
        edge_N2: begin and end of each box, in pixels.
        length: L.
        side: S.
    """
    centre_L, cell_S = np.arange(length, dtype=np.float32) + 0.5, np.arange(side, dtype=np.float32)
    begin_N1, end_N1 = (edge_N2[:, edge, None].astype(np.float32) for edge in (0, 1))
    position_NL = (centre_L - begin_N1) * (side / np.maximum(end_N1 - begin_N1, 1e-6)) - 0.5  # in cells
    weight_NLS = np.maximum(0, 1 - np.abs(position_NL.clip(0, side - 1)[..., None] - cell_S))
    weight_NLS[(centre_L < begin_N1) | (centre_L >= end_N1)] = 0
    return weight_NLS
