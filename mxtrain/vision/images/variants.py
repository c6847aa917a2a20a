"""Variants of images for test-time augmentation: mirrored and resized ones.

Legend: B batch, C channels, H height, W width of the network's input; h, w of a variant.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Sequence, Tuple

from mxtrain.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

FLIP, VFLIP, SCALES = "flip", "vflip", "scales"
NAMES = (FLIP, VFLIP, SCALES)
MAX_STRIDE = 32
"""Stride of the coarsest maps of most networks, in pixels; sides of scaled images are multiples of it."""


@dataclass(frozen=True)
class ImageVariant:
    """A mirrored or resized variant of images. It changes the network's input, with the padding of images in a frame.

    Attributes:
        scale: factor of the sides, before they are rounded.
        is_flipped: mirrored left-right.
        is_upside_down: mirrored top-bottom.
    """

    scale: float = 1.0
    is_flipped: bool = False
    is_upside_down: bool = False

    @property
    def name(self) -> str:
        """See `Variant`."""
        parts = [FLIP] * self.is_flipped + [VFLIP] * self.is_upside_down
        return " ".join([*parts, *([f"scale {self.scale:g}"] if self.scale != 1 else [])])

    def size(self, size: Sequence[int]) -> Tuple[int, int]:
        """Returns the (height, width) of the variant of images of that (height, width)."""
        height, width = size
        return scaled_side(height, self.scale), scaled_side(width, self.scale)

    def apply(self, inputs: Tuple[NDArray, ...]) -> Tuple[NDArray, ...]:
        """See `Variant`; the first input are the images."""
        image_BCHW, *others = inputs
        return (self.resized(self.mirrored(image_BCHW), self.size(image_BCHW.shape[2:])), *others)

    def undo(self, map_BKhw: NDArray, size: Sequence[int]) -> NDArray:
        """Returns maps of the variant's pixels as maps of the pixels of the unchanged images.

        Args:
            map_BKhw: maps of the size of the variant.
            size: (height, width) of the result.
        """
        return self.mirrored(self.resized(map_BKhw, size))

    def mirrored(self, map_BKHW: NDArray) -> NDArray:
        """Returns mirrored maps; the same function mirrors them back."""
        axes = [axis for axis, is_used in ((3, self.is_flipped), (2, self.is_upside_down)) if is_used]
        return map_BKHW.flip(axis=axes) if axes else map_BKHW

    def resized(self, map_BKHW: NDArray, size: Sequence[int]) -> NDArray:
        """Returns maps in another (height, width), by bilinear interpolation."""
        from mxtrain.engine.backend import nd

        if tuple(map_BKHW.shape[2:]) == tuple(size):
            return map_BKHW
        height, width = size
        return nd.contrib.BilinearResize2D(map_BKHW, height=height, width=width, align_corners=False)


def scaled_side(side: int, scale: float) -> int:
    """Returns a scaled side in pixels, at least one stride. It is a multiple of the largest power of two up to
    `MAX_STRIDE` that divides `side` and is at most an eighth of it, so that networks halve both sides alike."""
    stride = 1
    while stride < MAX_STRIDE and side % (2 * stride) == 0 and 16 * stride <= side:
        stride *= 2
    return side if scale == 1 else max(1, round(side * scale / stride)) * stride


def build_variants(names: Sequence[str], scales: Sequence[float], size: Sequence[int]) -> List[ImageVariant]:
    """Returns the variants of images: the unchanged ones, and all combinations of what is named.

    Args:
        names: of `NAMES`.
        scales: factors of the sides, used with "scales".
        size: (height, width) of the network's input.

    Raises:
        ConfigError: there is no such variant, or a scale changes nothing.
    """
    for name in names:
        if name not in NAMES:
            raise ConfigError(
                f"augment={name}: there is no variant '{name}'.{did_you_mean(name, NAMES)} It can be one or several of "
                f"{', '.join(NAMES)}."
            )
    factors = [1.0, *dict.fromkeys(scales)] if SCALES in names else [1.0]
    sizes = [ImageVariant(scale).size(size) for scale in factors]
    for number, scale in enumerate(factors):
        if sizes[number] in sizes[:number]:
            height, width = sizes[number]
            same = "the size that they have" if sizes[number] == sizes[0] else "the size of another scale"
            raise ConfigError(
                f"augment_scales: {scale:g} makes images of {size[0]}x{size[1]} {height}x{width}, {same}. Choose "
                "scales that are farther apart, e.g. augment_scales=[0.5,1.5]."
            )
    flips, turns = ([False, True] if name in names else [False] for name in (FLIP, VFLIP))
    return [ImageVariant(*choice) for choice in itertools.product(factors, flips, turns)]


def require_variants(variants: Sequence[ImageVariant], allowed: Sequence[str], reason: str) -> None:
    """Checks that only some kinds of variants are used.

    Args:
        variants: the variants.
        allowed: of `NAMES`.
        reason: what the others would do, for the message.

    Raises:
        ConfigError: there is another kind.
    """
    used = {
        FLIP: any(one.is_flipped for one in variants),
        VFLIP: any(one.is_upside_down for one in variants),
        SCALES: any(one.scale != 1 for one in variants),
    }
    for name, is_used in used.items():
        if is_used and name not in allowed:
            raise ConfigError(f"augment={name}: {reason}. Type augment={','.join(allowed)}, or leave it out.")
