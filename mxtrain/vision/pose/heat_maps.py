"""Heat maps of key points: made of places on the host, and places found in them on the device.

Cell m of a map lies at the middle of the pixel number m * stride of the network's input, as SimplePose has it, so
that weights trained elsewhere mean the same places here.

Source: Xiao et al., "Simple Baselines for Human Pose Estimation and Tracking" (2018), and their code.

Legend: B batch, J key points, h, w cells of a map, P = h * w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence, Tuple

import numpy as np

from mxtrain.vision.pose.key_points import known

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

REACH = 3
"""Standard deviations from a key point within which a map is not 0."""
SHIFT = 0.25
"""Cells by which a maximum is moved towards its higher neighbour."""


class HeatMaps:
    """Relation between a network's heat maps and positions in its input.

    Args:
        map_size: (h, w).
        input_size: (H, W).
        sigma: standard deviation of the hill at a key point, in cells.
    """

    def __init__(self, map_size: Sequence[int], input_size: Sequence[int], sigma: float) -> None:
        self._height, self._width = map_size
        self._stride_2 = np.array([input_size[1] / map_size[1], input_size[0] / map_size[0]])
        self._sigma = sigma

    def encode(self, point_BJ3: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Maps (B, J, h, w), 1 in the cells of key points and falling off around them, and which count, (B, J): those
        whose place is known and whose hill reaches into the map."""
        centre_BJ2 = np.floor((point_BJ3[..., :2].astype(np.float64) - 0.5) / self._stride_2 + 0.5)
        reach = int(REACH * self._sigma)
        falls = []
        for axis, length in ((1, self._height), (0, self._width)):
            away_BJL = np.arange(length) - centre_BJ2[..., axis, None]
            fall_BJL = np.exp(-(away_BJL**2) / (2 * self._sigma**2))
            falls.append(np.where(np.abs(away_BJL) <= reach, fall_BJL, 0.0))
        counts_BJ = known(point_BJ3) & falls[0].any(axis=-1) & falls[1].any(axis=-1)
        map_BJhw = falls[0][..., :, None] * falls[1][..., None, :] * counts_BJ[..., None, None]
        return map_BJhw.astype(np.float32), counts_BJ.astype(np.float32)

    def decode(self, map_BJhw: NDArray) -> NDArray:
        """Returns the positions of the maxima, in pixels of the network's input, and their heights, (B, J, 3).
        Asynchronous."""
        from mxtrain.engine.backend import nd

        map_BJP = map_BJhw.astype("float32").reshape((0, 0, -1))
        # As integers: float32 counts to 2^24 only.
        top_BJ1, place_BJ1 = nd.topk(map_BJP, k=1, axis=2, ret_typ="both", dtype="int32")
        place_BJ = place_BJ1.squeeze(axis=2).astype("float64")
        line_BJ = nd.floor(place_BJ / self._width)
        column_BJ = place_BJ - line_BJ * self._width
        x_BJ = column_BJ + self._towards(map_BJP, place_BJ, column_BJ, self._width, 1)
        y_BJ = line_BJ + self._towards(map_BJP, place_BJ, line_BJ, self._height, self._width)
        x_BJ, y_BJ = (at_BJ * float(stride) + 0.5 for at_BJ, stride in zip((x_BJ, y_BJ), self._stride_2))
        return nd.stack(x_BJ.astype("float32"), y_BJ.astype("float32"), top_BJ1.squeeze(axis=2), axis=-1)

    def _towards(
        self, map_BJP: NDArray, place_BJ: NDArray, at_BJ: NDArray, length: int, step: int
    ) -> NDArray:  # fmt: skip
        """Returns the step towards the higher of two neighbours, if there are two."""
        from mxtrain.engine.backend import nd

        last = self._height * self._width - 1
        before_BJ, after_BJ = (
            nd.pick(map_BJP, nd.clip(place_BJ + way * step, 0, last).astype("int32"), axis=2) for way in (-1, 1)
        )
        has_two_BJ = (at_BJ > 0) * (at_BJ < length - 1)
        return SHIFT * nd.sign(after_BJ - before_BJ).astype("float64") * has_two_BJ
