"""Common corruptions of images, at severities 1 to 5, without geometric changes.

Source: D. Hendrycks, T. Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019, for the kinds of corruption and how they are evaluated. The strengths are mxtrain's own (`STRENGTHS`), so
results do not compare with those on ImageNet-C. Lengths in pixels are for an image whose shorter side is 224 pixels;
they grow with the square root of the side, so that corruptions neither destroy images of 8 pixels nor vanish in images
of 500.

Legend: B batch, C channels, H height, W width. Images are floats from 0 to 1 here.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Callable, Dict, Mapping, Tuple

import numpy as np

from mxtrain.data.loading.opening import open_image
from mxtrain.data.loading.randomness import bits
from mxtrain.vision.draws import VisionDraw

if TYPE_CHECKING:
    from mxtrain.data.spec import Source

SEVERITIES = (1, 2, 3, 4, 5)
STRENGTHS: Mapping[str, Tuple[float, ...]] = {
    "noise": (0.05, 0.1, 0.15, 0.25, 0.35),  # standard deviation of Gaussian noise, white is 1
    "shot_noise": (60, 30, 15, 8, 4),  # photons that a white pixel gets
    "impulse_noise": (0.02, 0.05, 0.1, 0.17, 0.27),  # share of values that become black or white
    "blur": (1, 2, 3, 4.5, 6),  # standard deviation of a Gaussian, in pixels
    "motion_blur": (6, 10, 15, 22, 30),  # length of a line in a random direction, in pixels
    "fog": (0.2, 0.35, 0.5, 0.65, 0.8),  # share of the light that comes from the fog where it is thickest
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),  # added to every value
    "contrast": (0.6, 0.45, 0.3, 0.2, 0.1),  # remaining share of the difference from the image's mean
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.2),  # remaining share of the pixels along each side
    "jpeg": (30, 20, 15, 10, 5),  # JPEG quality, of 100
}
"""Name of a corruption -> its strength at each severity."""
_SIDE = 224
"""Shorter side in pixels of the images that lengths in `STRENGTHS` are for."""
_SAMPLES_PER_TASK = 16


class Corrupted:
    """Source of the samples of another source with corrupted images; labels and masks are unchanged.

    Random numbers are a function of (seed, sample index, corruption). They are the same for each severity, so that
    severities can be compared.
    """

    def __init__(self, source: Source, name: str, severity: int) -> None:
        """Wraps a source.

        Args:
            source: source of the samples.
            name: a key of `STRENGTHS`.
            severity: 1 to 5.
        """
        self._source, self._corrupt = source, CORRUPTIONS[name]
        self._strength = STRENGTHS[name][severity - 1]
        self._draw = VisionDraw.CORRUPTION + list(STRENGTHS).index(name)
        self.shape = source.shape
        self.samples_per_task = source.samples_per_task or _SAMPLES_PER_TASK

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, ...]:
        """Returns the samples of the wrapped source with corrupted images. The padding of images in a frame is
        unchanged."""
        image_BCHW, *others = self._source.fetch(index_B, seed=seed, epoch=epoch, train=train)
        key_B = bits(seed, 0, index_B, self._draw)
        for row, (image_CHW, key) in enumerate(zip(image_BCHW, key_B)):
            # An image in a frame comes with its original height and width, and its size in the frame.
            height, width = map(int, others[1][row, 2:4]) if len(others) > 1 else image_CHW.shape[1:]
            image_BCHW[row, :, :height, :width] = self._corrupted(image_CHW[:, :height, :width], int(key))
        return (image_BCHW, *others)

    def _corrupted(self, image_CHW: np.ndarray, key: int) -> np.ndarray:
        # The key is one of the sample: its corruption depends neither on the batch nor on the number of threads.
        generator = np.random.Generator(np.random.Philox(key=key))
        changed_CHW = 255 * np.clip(self._corrupt(image_CHW / 255.0, self._strength, generator), 0, 1)
        return np.rint(changed_CHW) if image_CHW.dtype == np.uint8 else changed_CHW


# Each function takes an image, a strength of `STRENGTHS` and a generator. The caller clips the result to 0 to 1.


def _noise(image_CHW: np.ndarray, deviation: float, generator: np.random.Generator) -> np.ndarray:
    return image_CHW + deviation * generator.standard_normal(image_CHW.shape)


def _shot_noise(image_CHW: np.ndarray, photons: float, generator: np.random.Generator) -> np.ndarray:
    return generator.poisson(image_CHW * photons) / photons


def _impulse_noise(image_CHW: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    uniform_CHW = generator.random(image_CHW.shape)
    is_white_CHW = generator.random(image_CHW.shape) < 0.5
    return np.where(uniform_CHW < share, is_white_CHW, image_CHW)


def _blur(image_CHW: np.ndarray, deviation: float, generator: np.random.Generator) -> np.ndarray:
    import cv2

    deviation *= _scale(image_CHW)
    return np.stack(
        [
            cv2.GaussianBlur(np.ascontiguousarray(plane), (0, 0), deviation, borderType=cv2.BORDER_REFLECT)
            for plane in image_CHW
        ]
    )


def _motion_blur(image_CHW: np.ndarray, length: float, generator: np.random.Generator) -> np.ndarray:
    """Averages along a line of a random direction. The line is drawn with bilinear interpolation, so that all
    directions are blurred equally."""
    import cv2

    length *= _scale(image_CHW)
    angle = np.pi * generator.random()
    radius = int(np.ceil(length / 2)) + 1
    kernel = np.zeros((2 * radius + 1, 2 * radius + 1))
    for position in np.linspace(-length / 2, length / 2, 8 * radius + 1):
        down, right = radius + position * np.sin(angle), radius + position * np.cos(angle)
        top, left = int(down), int(right)
        shares = np.outer([1 - down + top, down - top], [1 - right + left, right - left])
        kernel[top : top + 2, left : left + 2] += shares
    kernel /= kernel.sum()
    return np.stack(
        [cv2.filter2D(np.ascontiguousarray(plane), -1, kernel, borderType=cv2.BORDER_REFLECT) for plane in image_CHW]
    )


def _fog(image_CHW: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    """Blends with white by a random density: the sum of random values on ever finer grids, each with half the weight of
    the previous one."""
    import cv2

    height, width = image_CHW.shape[1:]
    density_HW, size, weight = np.zeros((height, width)), 2, 1.0
    while size <= max(2, min(height, width) // 2):
        grid = generator.random((size + 1, size + 1))
        density_HW += weight * cv2.resize(grid, (width, height), interpolation=cv2.INTER_LINEAR)
        size, weight = 2 * size, weight / 2
    low, high = density_HW.min(), density_HW.max()
    opacity_HW = share * (0.6 + 0.4 * (density_HW - low) / max(high - low, 1e-12))
    return image_CHW * (1 - opacity_HW) + opacity_HW


def _brightness(image_CHW: np.ndarray, added: float, generator: np.random.Generator) -> np.ndarray:
    return image_CHW + added


def _contrast(image_CHW: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    mean_C11 = image_CHW.mean(axis=(1, 2), keepdims=True)
    return mean_C11 + share * (image_CHW - mean_C11)


def _pixelate(image_CHW: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    from PIL import Image

    height, width = image_CHW.shape[1:]
    small = (max(1, round(width * share)), max(1, round(height * share)))
    planes = [Image.fromarray(plane.astype(np.float32)) for plane in image_CHW]
    coarse = [plane.resize(small, Image.Resampling.BOX) for plane in planes]
    return np.stack([np.asarray(plane.resize((width, height), Image.Resampling.NEAREST)) for plane in coarse])


def _jpeg(image_CHW: np.ndarray, quality: float, generator: np.random.Generator) -> np.ndarray:
    """Encodes the image as JPEG with 8 bits and decodes it again. Unless there are three channels, each is encoded
    separately."""
    byte_CHW = np.rint(255 * image_CHW).astype(np.uint8)
    if len(byte_CHW) == 3:
        return _encode_and_decode(byte_CHW.transpose(1, 2, 0), int(quality)).transpose(2, 0, 1)
    return np.stack([_encode_and_decode(plane, int(quality)) for plane in byte_CHW])


def _encode_and_decode(pixels: np.ndarray, quality: int) -> np.ndarray:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(content, "JPEG", quality=quality)
    with open_image(content.getvalue()) as image:
        return np.asarray(image) / 255.0


def _scale(image_CHW: np.ndarray) -> float:
    """Returns the factor of lengths in pixels for an image of this size."""
    return float(np.sqrt(min(image_CHW.shape[1:]) / _SIDE))


CORRUPTIONS: Dict[str, Callable[[np.ndarray, float, np.random.Generator], np.ndarray]] = {
    "noise": _noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "blur": _blur,
    "motion_blur": _motion_blur,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "pixelate": _pixelate,
    "jpeg": _jpeg,
}
