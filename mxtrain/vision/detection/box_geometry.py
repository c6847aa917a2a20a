"""Geometry of boxes on the host: common areas, intersection over union, and offsets from one box to another. What a
network computes of boxes on its device is in `box_arithmetic`.

Legend: M boxes, N others, P pairs. Edges are left, top, right, bottom in pixels.
"""

from __future__ import annotations

import numpy as np

TINY = 1e-12
"""Unions are at least this: two boxes without an area have nothing in common."""


def common_areas(edge_M4: np.ndarray, edge_N4: np.ndarray) -> np.ndarray:
    """Computes the area that boxes have in common, in pixels, (M, N)."""
    sides = []
    for low, high in ((0, 2), (1, 3)):
        begin_MN = np.maximum(edge_M4[:, None, low], edge_N4[:, low])
        end_MN = np.minimum(edge_M4[:, None, high], edge_N4[:, high])
        end_MN -= begin_MN
        sides.append(np.maximum(end_MN, 0, out=end_MN))
    sides[0] *= sides[1]
    return sides[0]


def intersections_over_unions(edge_M4: np.ndarray, edge_N4: np.ndarray) -> np.ndarray:
    """Computes the intersection over union of boxes, (M, N)."""
    common_MN = common_areas(edge_M4, edge_N4)
    area_M, area_N = ((edge[:, 2:] - edge[:, :2]).prod(axis=1) for edge in (edge_M4, edge_N4))
    common_MN /= np.maximum(area_M[:, None] + area_N - common_MN, TINY)
    return common_MN


def offsets_from(centred_P4: np.ndarray, true_P4: np.ndarray) -> np.ndarray:
    """Returns the offsets of boxes from true boxes, (P, 4): distance of centres over the box's size, and logarithms of
    the ratios of sizes.

    Args:
        centred_P4: centre x and y, width and height.
        true_P4: edges.
    """
    size_P2 = true_P4[:, 2:] - true_P4[:, :2]
    centre_P2 = true_P4[:, :2] + size_P2 * 0.5
    moved_P2 = (centre_P2 - centred_P4[:, :2]) / centred_P4[:, 2:]
    return np.concatenate([moved_P2, np.log(size_P2 / centred_P4[:, 2:])], axis=1)
