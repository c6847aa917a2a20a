"""Affine maps of the plane, and transforms of images by them.

A map is the 2 x 3 matrix from (x, y) of the original image to (x, y) of the transformed one. Pixel i extends from i to
i + 1, so its centre is i + 0.5.

Legend: C channels, H height, W width, J points. `matrix_23` has the shape (2, 3), `linear_22` its left part.
"""

from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np

IDENTITY_23 = np.eye(2, 3)
_MAX_CV2_CHANNELS = 4
"""Largest number of channels for which warpAffine takes a fill colour."""
_AVERAGED_BELOW = 0.99
"""Scale below which an image is averaged first: interpolation alone would skip pixels."""
_EDGE = 1e-6
"""Tolerance in pixels of the test whether the image fills the result."""


def transform_points(point_J2: np.ndarray, matrix_23: np.ndarray) -> np.ndarray:
    """Applies a map to points (..., 2)."""
    return point_J2 @ matrix_23[:, :2].T + matrix_23[:, 2]


def inverse(matrix_23: np.ndarray) -> np.ndarray:
    """Returns the inverse map. Does not call LAPACK, whose threads take longer than all other work on a small image."""
    (a, b), (c, d) = matrix_23[:, :2].tolist()
    # Without rotation one division is rounded once, where d / (a d) is rounded twice.
    if b == c == 0:
        inverse_22 = np.diag([1 / a, 1 / d])
    else:
        inverse_22 = np.array([[d, -b], [-c, a]]) / (a * d - b * c)
    return np.concatenate([inverse_22, -inverse_22 @ matrix_23[:, 2:]], axis=1)


def determinant(matrix_23: np.ndarray) -> float:
    """Returns the factor by which areas grow; negative if the map mirrors the image."""
    (a, b), (c, d) = matrix_23[:, :2].tolist()
    return float(a * d - b * c)


def compose(second_23: np.ndarray, first_23: np.ndarray) -> np.ndarray:
    """Returns the map that applies `first_23`, then `second_23`."""
    linear_22 = second_23[:, :2] @ first_23[:, :2]
    return np.concatenate([linear_22, transform_points(first_23[:, 2], second_23)[:, None]], axis=1)


def corners(size: Sequence[float]) -> np.ndarray:
    """Returns the corners (4, 2) of an image of that (height, width)."""
    height, width = size
    return np.array([[0.0, 0.0], [width, 0.0], [0.0, height], [width, height]])


def warp(
    image_CHW: np.ndarray, matrix_23: np.ndarray, size: Tuple[int, int], fill_C: np.ndarray, *, is_nearest: bool = False
) -> np.ndarray:
    """Transforms an image by a map. Returns (C, *size).

    Args:
        image_CHW: image of a type that OpenCV supports.
        matrix_23: the map.
        size: (height, width) of the result.
        fill_C: colour outside of the image.
        is_nearest: if True, take the nearest pixel instead of interpolating, as masks need it.
    """
    if (np.abs(matrix_23[:, :2]) == np.eye(2)).all() and (matrix_23[:, 2] == np.rint(matrix_23[:, 2])).all():
        return _shift(image_CHW, matrix_23, size, fill_C)
    import cv2

    if len(image_CHW) > _MAX_CV2_CHANNELS:
        parts = [slice(first, first + _MAX_CV2_CHANNELS) for first in range(0, len(image_CHW), _MAX_CV2_CHANNELS)]
        warped = [warp(image_CHW[part], matrix_23, size, fill_C[part], is_nearest=is_nearest) for part in parts]
        return np.concatenate(warped)
    array_HWC = np.ascontiguousarray(image_CHW.transpose(1, 2, 0))
    height, width, channels = array_HWC.shape
    back_42 = transform_points(corners(size), inverse(matrix_23))
    is_inside = ((back_42 >= -_EDGE) & (back_42 <= np.array([width, height]) + _EDGE)).all()
    scale_2 = np.minimum(np.linalg.norm(matrix_23[:, :2], axis=0), 1.0)
    if not is_nearest and (scale_2 < _AVERAGED_BELOW).any():
        small_2 = np.maximum(np.rint(scale_2 * [width, height]), 1).astype(int)
        # Bilinear sampling of a smaller image would skip pixels, so they are averaged first.
        array_HWC = cv2.resize(array_HWC, tuple(small_2.tolist()), interpolation=cv2.INTER_AREA)
        enlarge_23 = np.diag([width, height, 1] / np.append(small_2, 1))[:2]
        matrix_23 = compose(matrix_23, enlarge_23)
    # In OpenCV the centre of the first pixel is 0, not 0.5.
    cv2_matrix_23 = matrix_23.copy()
    cv2_matrix_23[:, 2] += 0.5 * matrix_23[:, :2].sum(axis=1) - 0.5
    warped = cv2.warpAffine(
        array_HWC,
        cv2_matrix_23,
        (size[1], size[0]),
        flags=cv2.INTER_NEAREST if is_nearest else cv2.INTER_LINEAR,
        # If the image fills the result, its border must not be mixed with the fill colour.
        borderMode=cv2.BORDER_REPLICATE if is_inside else cv2.BORDER_CONSTANT,
        borderValue=np.asarray(fill_C, float).tolist(),
    )
    return warped.reshape(*size, channels).transpose(2, 0, 1)


def _shift(image_CHW: np.ndarray, matrix_23: np.ndarray, size: Tuple[int, int], fill_C: np.ndarray) -> np.ndarray:
    """Applies a map that only mirrors and shifts by whole pixels; see `warp`."""
    result_CHW = np.empty((len(image_CHW), *size), image_CHW.dtype)
    result_CHW[:] = np.asarray(fill_C)[:, None, None]
    sources, targets = [], []
    for axis, length, result_length in ((1, image_CHW.shape[1], size[0]), (0, image_CHW.shape[2], size[1])):
        shift = int(matrix_23[axis, 2])
        if matrix_23[axis, axis] < 0:
            image_CHW = np.flip(image_CHW, 2 - axis)
            shift -= length
        begin, end = max(shift, 0), max(min(shift + length, result_length), max(shift, 0))
        sources.append(slice(begin - shift, end - shift))
        targets.append(slice(begin, end))
    result_CHW[:, targets[0], targets[1]] = image_CHW[:, sources[0], sources[1]]
    return result_CHW
