"""Data augmentation of whole batches in NumPy: crops, flips, cutout, mixup and CutMix.

Random numbers are a function of (seed, epoch, sample index), not of the position in the batch.
Shapes are suffixes: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from typing import Callable, Optional, Tuple

import numpy as np

from mxtrain.data.loading.randomness import beta, integers, uniform
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.images.settings import Augment

Fetch = Callable[[np.ndarray], Tuple[np.ndarray, ...]]
"""Function of the indices of samples that returns their images and labels."""


def augment_batch(
    image_BCHW: np.ndarray, index_B: np.ndarray, augment: Augment, *, seed: int, epoch: int
) -> np.ndarray:
    """Applies random crops, horizontal flips and cutout to the images of a batch.

    Source of cutout: DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout" (2017).

    Args:
        image_BCHW: uint8 or float32; may be written to.
        index_B: indices of the samples in their dataset.
        augment: settings of the augmentation.
        seed: seed of the run.
        epoch: number of the epoch, from 0.

    Returns:
        Images of the same shape and type.
    """
    if augment.crop_padding:
        image_BCHW = _random_crop(image_BCHW, index_B, augment.crop_padding, seed, epoch)
    if augment.flip:
        flipped_B = uniform(seed, epoch, index_B, VisionDraw.FLIP) < 0.5
        image_BCHW[flipped_B] = image_BCHW[flipped_B][..., ::-1]
    if augment.cutout:
        height, width = image_BCHW.shape[2:]
        top_B = integers(seed, epoch, index_B, VisionDraw.CUTOUT_TOP, height)
        left_B = integers(seed, epoch, index_B, VisionDraw.CUTOUT_LEFT, width)
        side_B = np.full(len(index_B), augment.cutout)
        is_inside_B1HW = _box_masks(top_B, left_B, side_B, side_B, height, width)
        image_BCHW *= ~is_inside_B1HW
    return image_BCHW


def mix_batch(
    fetch: Fetch,
    index_B: np.ndarray,
    augment: Augment,
    *,
    num_samples: int,
    num_classes: int,
    seed: int,
    epoch: int,
    partner_N: Optional[np.ndarray] = None,
) -> Tuple[np.ndarray, np.ndarray]:
    """Mixes every sample with a partner, by mixup or CutMix.

    Args:
        fetch: returns augmented images and labels of samples.
        index_B: indices of the samples.
        augment: settings, with `mixup` or `cutmix` above 0.
        num_samples: length of the dataset.
        num_classes: K.
        seed: seed of the run.
        epoch: number of the epoch, from 0.
        partner_N: indices of samples from which partners are chosen; None: all other samples of the dataset.

    Returns:
        Images (B, C, H, W) float32 from 0 to 255, and label probabilities (B, K) float32.

    Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2018); Yun et al., "CutMix" (2019).
    """
    if partner_N is not None:
        partner_B = partner_N[integers(seed, epoch, index_B, VisionDraw.PARTNER, len(partner_N))]
    else:
        # Any other sample: an offset from 1 to n - 1, modulo n (itself where there is only one).
        offset_B = 1 + integers(seed, epoch, index_B, VisionDraw.PARTNER, max(num_samples - 1, 1))
        partner_B = (index_B + offset_B) % num_samples
    (image_BCHW, label_B), (other_BCHW, other_label_B) = fetch(index_B), fetch(partner_B)
    height, width = image_BCHW.shape[2:]

    threshold = augment.mixup and (0.5 if augment.cutmix else 1.0)
    is_mixup_B = uniform(seed, epoch, index_B, VisionDraw.MIX_KIND) < threshold
    weight_B = np.ones(len(index_B))
    mixed_BCHW = image_BCHW.astype(np.float32)
    if is_mixup_B.any():
        weight_B[is_mixup_B] = beta(seed, epoch, index_B[is_mixup_B], augment.mixup)
        weight_b111 = weight_B[is_mixup_B].astype(np.float32)[:, None, None, None]
        mixed_BCHW[is_mixup_B] = weight_b111 * mixed_BCHW[is_mixup_B] + (1 - weight_b111) * other_BCHW[is_mixup_B]
    if not is_mixup_B.all():
        cut_B = np.flatnonzero(~is_mixup_B)
        index = index_B[cut_B]
        # The root, because the share is one of areas.
        side = np.sqrt(1.0 - beta(seed, epoch, index, augment.cutmix))
        box_height, box_width = (side * height).astype(np.int64), (side * width).astype(np.int64)
        top = integers(seed, epoch, index, VisionDraw.MIX_TOP, height)
        left = integers(seed, epoch, index, VisionDraw.MIX_LEFT, width)
        is_inside = _box_masks(top, left, box_height, box_width, height, width)
        mixed_BCHW[cut_B] = np.where(is_inside, other_BCHW[cut_B], mixed_BCHW[cut_B])
        # The weight follows from the pixels that were pasted: a part of the box may be outside of the image.
        weight_B[cut_B] = 1.0 - is_inside.mean(axis=(1, 2, 3))
    if label_B.ndim == 2:  # sets of classes
        weight_B1 = weight_B[:, None]
        return mixed_BCHW, (weight_B1 * label_B + (1.0 - weight_B1) * other_label_B).astype(np.float32)
    probability_BK = np.zeros((len(index_B), num_classes), np.float32)
    row_B = np.arange(len(index_B))
    probability_BK[row_B, label_B] = weight_B
    # Added, because both images may be of one class.
    probability_BK[row_B, other_label_B] += (1.0 - weight_B).astype(np.float32)
    return mixed_BCHW, probability_BK


def _random_crop(image_BCHW: np.ndarray, index_B: np.ndarray, padding: int, seed: int, epoch: int) -> np.ndarray:
    """Pads images with zeros, and crops a random part of the original size from each."""
    batch, channels, height, width = image_BCHW.shape
    padded = np.zeros((batch, channels, height + 2 * padding, width + 2 * padding), image_BCHW.dtype)
    padded[:, :, padding : padding + height, padding : padding + width] = image_BCHW
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))  # type: ignore[call-overload]
    top_B = integers(seed, epoch, index_B, VisionDraw.CROP_TOP, 2 * padding + 1)
    left_B = integers(seed, epoch, index_B, VisionDraw.CROP_LEFT, 2 * padding + 1)
    return windows[np.arange(batch), :, top_B, left_B]


def _box_masks(
    centre_y_B: np.ndarray,
    centre_x_B: np.ndarray,
    box_height_B: np.ndarray,
    box_width_B: np.ndarray,
    height: int,
    width: int,
) -> np.ndarray:
    """Returns True for pixels inside their sample's box, (B, 1, H, W); boxes are clipped at the border."""
    top_B = centre_y_B - box_height_B // 2
    left_B = centre_x_B - box_width_B // 2
    y_H, x_W = np.arange(height), np.arange(width)
    in_rows_BH = (y_H >= top_B[:, None]) & (y_H < (top_B + box_height_B)[:, None])
    in_columns_BW = (x_W >= left_B[:, None]) & (x_W < (left_B + box_width_B)[:, None])
    return in_rows_BH[:, None, :, None] & in_columns_BW[:, None, None, :]
