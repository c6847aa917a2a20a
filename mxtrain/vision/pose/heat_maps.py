"""Encodes key points as heat maps on the host, and decodes heat maps to key points on the device.

The centre of cell m of a map is the centre of pixel m * stride of the network's input, as in SimplePose, so that
weights trained elsewhere mean the same positions here.

Source: Xiao et al., "Simple Baselines for Human Pose Estimation and Tracking" (2018), and their code.

Legend: B batch, J key points, h, w height and width of a map, P = h * w, L = w or h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence, Tuple

import numpy as np

from mxtrain.vision.pose.key_points import known

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

REACH = 3
"""Radius of the Gaussian at a key point, in standard deviations; a map is 0 farther away."""
SHIFT = 0.25
"""Distance in cells by which a maximum is moved towards its higher neighbour. Source: the code of SimplePose."""


class HeatMaps:
    """Translates between key points and heat maps.

    Args:
        map_size: (height, width) of a map.
        input_size: (height, width) of the network's input, in pixels.
        sigma: standard deviation of the Gaussian at a key point, in cells.
    """

    def __init__(self, map_size: Sequence[int], input_size: Sequence[int], sigma: float) -> None:
        self._height, self._width = map_size
        self._stride_2 = np.array([input_size[1] / map_size[1], input_size[0] / map_size[0]])
        self._sigma = sigma

    def encode(self, point_BJ3: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Returns heat maps (B, J, h, w) with a Gaussian around the cell of each key point, 1 at its maximum; and a
        mask of the key points that are trained on, (B, J): those with a known position whose Gaussian overlaps the map.

        Args:
            point_BJ3: x, y in pixels of the network's input, and visibility.
        """
        # Cell m is the middle of pixel 4 m, as in SimplePose. As the middle of 4 x 4 pixels it would move the points of
        # weights from GluonCV by 1.5 pixels.
        centre_BJ2 = np.floor((point_BJ3[..., :2].astype(np.float64) - 0.5) / self._stride_2 + 0.5)
        reach = int(REACH * self._sigma)
        gaussians = []  # along y and x, whose product is the two-dimensional one
        for axis, length in ((1, self._height), (0, self._width)):
            distance_BJL = np.arange(length) - centre_BJ2[..., axis, None]
            gaussian_BJL = np.exp(-(distance_BJL**2) / (2 * self._sigma**2))
            gaussians.append(np.where(np.abs(distance_BJL) <= reach, gaussian_BJL, 0.0))
        is_used_BJ = known(point_BJ3) & gaussians[0].any(axis=-1) & gaussians[1].any(axis=-1)
        map_BJhw = gaussians[0][..., :, None] * gaussians[1][..., None, :] * is_used_BJ[..., None, None]
        return map_BJhw.astype(np.float32), is_used_BJ.astype(np.float32)

    def decode(self, map_BJhw: NDArray) -> NDArray:
        """Returns the maximum of each heat map: x and y in pixels of the network's input, and its value, (B, J, 3).
        Asynchronous."""
        from mxtrain.engine.backend import nd

        map_BJP = map_BJhw.astype("float32").reshape((0, 0, -1))
        # As integers: float32 represents integers only up to 2^24.
        top_BJ1, index_BJ1 = nd.topk(map_BJP, k=1, axis=2, ret_typ="both", dtype="int32")
        index_BJ = index_BJ1.squeeze(axis=2).astype("float64")
        line_BJ = nd.floor(index_BJ / self._width)
        column_BJ = index_BJ - line_BJ * self._width
        x_BJ = column_BJ + self._shift(map_BJP, index_BJ, column_BJ, self._width, 1)
        y_BJ = line_BJ + self._shift(map_BJP, index_BJ, line_BJ, self._height, self._width)
        x_BJ, y_BJ = (cell_BJ * float(stride) + 0.5 for cell_BJ, stride in zip((x_BJ, y_BJ), self._stride_2))
        return nd.stack(x_BJ.astype("float32"), y_BJ.astype("float32"), top_BJ1.squeeze(axis=2), axis=-1)

    def _shift(self, map_BJP: NDArray, index_BJ: NDArray, cell_BJ: NDArray, length: int, step: int) -> NDArray:
        """Returns the shift of maxima towards the higher of their two neighbours along an axis, in cells; 0 at the
        border of the map.

        Args:
            map_BJP: maps, flattened.
            index_BJ: index of each maximum in the flattened map.
            cell_BJ: index of its cell along the axis.
            length: number of cells along the axis.
            step: distance of neighbours along the axis in the flattened map.
        """
        from mxtrain.engine.backend import nd

        last = self._height * self._width - 1
        before_BJ, after_BJ = (
            nd.pick(map_BJP, nd.clip(index_BJ + sign * step, 0, last).astype("int32"), axis=2) for sign in (-1, 1)
        )
        is_inner_BJ = (cell_BJ > 0) * (cell_BJ < length - 1)
        return SHIFT * nd.sign(after_BJ - before_BJ).astype("float64") * is_inner_BJ
