"""Variants of samples (test-time augmentation) and tiles of large samples, for which a network predicts in several
passes. `mxtrain.task.merging` merges the predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Sequence, Tuple

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types import Shape


Box = Tuple[int, int, int, int]


class Variant(Protocol):
    """A variant of the samples of a batch, such as mirrored images."""

    @property
    def name(self) -> str:
        """Returns the name in messages; empty for unchanged samples."""

    def apply(self, inputs: Tuple[NDArray, ...]) -> Tuple[NDArray, ...]:
        """Returns the inputs of the network for the variant; the inputs themselves for unchanged samples."""


@dataclass(frozen=True)
class Tile:
    """A part of a sample.

    Attributes:
        sample: index of the sample.
        box: left, top, right, bottom in pixels.
        inner: the part that is closer to the middle of this tile than to that of another one, as `box`. The inner parts
            of the tiles of a sample cover it once.
        size: (height, width) of the sample.
        is_last: True for the last tile of the sample.
    """

    sample: int
    box: Box
    inner: Box
    size: Tuple[int, int]
    is_last: bool = False


class TiledSamples(Protocol):
    """Source of the tiles of the samples of another source, in the order of the samples.

    Attributes:
        tiles: the tiles of each sample line by line.
        tile_size: largest (height, width) of a tile in pixels.
        shape: shape of a tile as it enters the network.
    """

    tiles: Sequence[Tile]
    tile_size: Tuple[int, int]
    shape: Shape

    def __len__(self) -> int:
        """Returns the number of tiles."""
