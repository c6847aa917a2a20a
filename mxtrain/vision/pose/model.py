"""Base class of networks that find key points. Imports no MXNet."""

from __future__ import annotations

from typing import ClassVar, Tuple

from mxtrain.model.base import Model
from mxtrain.types import Shape


class PoseNetwork(Model):
    """A network from (B, C, H, W) to a heat map for each key point, (B, J, h, w), highest at the key point."""

    tasks: ClassVar[Tuple[str, ...]] = ("pose_estimation",)

    def map_size(self, input_shape: Shape) -> Tuple[int, int]:
        """Returns height and width of a heat map; by default a quarter of the input's.

        Args:
            input_shape: (C, H, W) of the network's input.

        Raises:
            ConfigError: the network does not take this size.
        """
        return -(-input_shape[1] // 4), -(-input_shape[2] // 4)
