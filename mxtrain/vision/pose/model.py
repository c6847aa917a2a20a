"""Base class of pose-estimation networks. Does not import MXNet."""

from __future__ import annotations

from typing import ClassVar, Tuple

from mxtrain.model.spec import Model
from mxtrain.types import Shape
from mxtrain.types.kinds import Images, Takes
from mxtrain.vision.kinds import KeyPoints


class PoseNetwork(Model):
    """Base class of networks that map images (B, C, H, W) to a heat map for each key point, (B, J, h, w)."""

    takes: ClassVar[Takes] = Takes(Images, KeyPoints)

    def map_size(self, input_shape: Shape) -> Tuple[int, int]:
        """Returns height and width of a heat map; by default a quarter of the input's.

        Args:
            input_shape: (C, H, W) of the network's input.

        Raises:
            ConfigError: the network does not accept this size.
        """
        return -(-input_shape[1] // 4), -(-input_shape[2] // 4)
