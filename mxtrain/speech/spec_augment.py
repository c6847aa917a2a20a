"""SpecAugment: hides stripes of a spectrogram in training, a function of (seed, epoch, sample).

Source: Park et al., "SpecAugment" (2019), https://arxiv.org/abs/1904.08779, without the warping of time, which its
section 5 finds to matter least.
"""

from __future__ import annotations

import numpy as np

from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.speech.draws import SpeechDraw
from mxtrain.types import Fraction, NonNegative, Spec


class SpecAugment(Spec):
    """Masks stripes of frequencies and time with 0, which is the mean."""

    frequency_masks: NonNegative = 2
    """Stripes of neighbouring bands."""
    frequency_width: NonNegative = 15
    """Most bands of a stripe."""
    time_masks: NonNegative = 2
    """Stripes of neighbouring frames."""
    time_width: NonNegative = 35
    """Most frames of a stripe."""
    time_share: Fraction = 0.2
    """Most of a recording that one stripe of frames may take."""

    def hide(self, frames_TF: np.ndarray, seed: int, epoch: int, index: int) -> None:
        """Hides stripes of frames in place."""
        length, width = frames_TF.shape
        most = min(self.time_width, int(self.time_share * length))
        for axis, (count, widest, size) in enumerate(
            ((self.time_masks, most, length), (self.frequency_masks, min(self.frequency_width, width), width))
        ):
            drawn = uniform_rows(seed, epoch, np.array([index]), SpeechDraw.SPEC_AUGMENT + axis, 2 * count)[0]
            for share, place in drawn.reshape(count, 2).astype(np.float64).tolist():
                hidden = int(share * (widest + 1))
                begin = int(place * (size - hidden + 1))
                if axis == 0:
                    frames_TF[begin : begin + hidden] = 0
                else:
                    frames_TF[:, begin : begin + hidden] = 0
