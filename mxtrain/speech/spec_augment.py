"""SpecAugment: masks bands of a spectrogram in training, as a function of (seed, epoch, sample).

Source: Park et al., "SpecAugment" (2019), https://arxiv.org/abs/1904.08779, without time warping, which has the
smallest effect according to section 5 of the paper.

Legend: T frames, F frequency bands.
"""

from __future__ import annotations

import numpy as np

from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.speech.draws import SpeechDraw
from mxtrain.types import Fraction, NonNegative, Spec


class SpecAugment(Spec):
    """Sets random blocks of frames and of frequency bands to 0, the mean of normalized features."""

    frequency_masks: NonNegative = 2
    """Number of frequency masks."""
    frequency_width: NonNegative = 15
    """Maximum number of consecutive bands of a frequency mask."""
    time_masks: NonNegative = 2
    """Number of time masks."""
    time_width: NonNegative = 35
    """Maximum number of consecutive frames of a time mask."""
    time_share: Fraction = 0.2
    """Maximum share of a recording that one time mask covers."""

    def apply_masks(self, frames_TF: np.ndarray, seed: int, epoch: int, index: int) -> None:
        """Masks the features of sample `index` in place."""
        num_frames, num_bands = frames_TF.shape
        max_frames = min(self.time_width, int(self.time_share * num_frames))
        max_bands = min(self.frequency_width, num_bands)
        for axis, (count, max_width, size) in enumerate(
            ((self.time_masks, max_frames, num_frames), (self.frequency_masks, max_bands, num_bands))
        ):
            random_2M = uniform_rows(seed, epoch, np.array([index]), SpeechDraw.SPEC_AUGMENT + axis, 2 * count)[0]
            for random_width, random_begin in random_2M.reshape(count, 2).astype(np.float64).tolist():
                width = int(random_width * (max_width + 1))
                begin = int(random_begin * (size - width + 1))
                if axis == 0:
                    # 0 is the mean of frames that are normalised.
                    frames_TF[begin : begin + width] = 0
                else:
                    frames_TF[:, begin : begin + width] = 0
