"""Log-mel frames of clips of one length. Exported folders have a copy of this module.

Legend: S samples of sound, T frames, F mel bands.
"""

from __future__ import annotations

import numpy as np

from mxtrain.speech.log_mel import FrameNumbers, log_mel

QUIETEST = -13.0
"""Lower limit of log-mel frames, about 100 dB below a full sine wave: digital silence has no level of its own."""


def fit_clip(sound_S: np.ndarray, count: int) -> np.ndarray:
    """Returns `count` samples: the middle of a longer sound, or a shorter one between equal parts of silence."""
    missing = count - len(sound_S)
    if missing <= 0:
        return sound_S[-missing // 2 :][:count]
    return np.pad(sound_S, (missing // 2, missing - missing // 2))


def clip_frames(sound_S: np.ndarray, features: FrameNumbers, seconds: float) -> np.ndarray:
    """Returns the frames of a clip, (T, F), before the normalisation of bands.

    Args:
        sound_S: sound at `features.sample_rate`.
        features: settings of the frames.
        seconds: length of clips.
    """
    return np.maximum(log_mel(fit_clip(sound_S, round(seconds * features.sample_rate)), features), np.float32(QUIETEST))
