"""Geometry of boxes on the host: intersections, intersection over union, and offsets from one box to another.
`box_arithmetic` has functions for the device.

Legend: M, N boxes, P pairs of boxes. Edges are left, top, right, bottom in pixels.
"""

from __future__ import annotations

import numpy as np

INSIDE_CROWD = 0.5
"""Share of a box inside a crowd region above which the box is neither background nor an object."""
TINY = 1e-12
"""Lower limit of divisors, for boxes without an area."""


def intersection_areas(edge_M4: np.ndarray, edge_N4: np.ndarray) -> np.ndarray:
    """Computes the areas of the intersections of boxes, in pixels, (M, N)."""
    sides = []
    for low, high in ((0, 2), (1, 3)):
        begin_MN = np.maximum(edge_M4[:, None, low], edge_N4[:, low])
        end_MN = np.minimum(edge_M4[:, None, high], edge_N4[:, high])
        end_MN -= begin_MN  # in place: the arrays can be large
        sides.append(np.maximum(end_MN, 0, out=end_MN))
    sides[0] *= sides[1]
    return sides[0]


def intersections_over_unions(edge_M4: np.ndarray, edge_N4: np.ndarray) -> np.ndarray:
    """Computes the intersection over union of boxes, (M, N)."""
    common_MN = intersection_areas(edge_M4, edge_N4)
    area_M, area_N = ((edge[:, 2:] - edge[:, :2]).prod(axis=1) for edge in (edge_M4, edge_N4))
    common_MN /= np.maximum(area_M[:, None] + area_N - common_MN, TINY)
    return common_MN


def are_inside(edge_N4: np.ndarray, region_M4: np.ndarray) -> np.ndarray:
    """Returns a mask of the boxes of which more than `INSIDE_CROWD` is inside one of the regions, (N,)."""
    if not len(region_M4):  # the usual case: spare the areas of many anchors
        return np.zeros(len(edge_N4), bool)
    area_N = (edge_N4[:, 2:] - edge_N4[:, :2]).prod(axis=1)
    return (intersection_areas(region_M4, edge_N4) > INSIDE_CROWD * area_N).any(axis=0)


def offsets_from(centred_P4: np.ndarray, true_P4: np.ndarray) -> np.ndarray:
    """Computes the offsets from boxes to their true boxes, (P, 4): the distance of centres relative to the size of the
    box, and the logarithm of the ratio of sizes.

    Args:
        centred_P4: boxes as centre x and y, width and height.
        true_P4: edges of the true boxes.
    """
    size_P2 = true_P4[:, 2:] - true_P4[:, :2]
    centre_P2 = true_P4[:, :2] + size_P2 * 0.5
    shift_P2 = (centre_P2 - centred_P4[:, :2]) / centred_P4[:, 2:]
    return np.concatenate([shift_P2, np.log(size_P2 / centred_P4[:, 2:])], axis=1)
