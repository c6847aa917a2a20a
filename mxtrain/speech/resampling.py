"""Resamples sound in NumPy. Exported folders have a copy of this module, so it imports nothing of mxtrain.

Legend: S samples of sound, M samples of the result, H taps of the filter, J taps of one phase.
"""

from __future__ import annotations

import math

import numpy as np

CROSSINGS = 10
"""Zero crossings of the filter on either side."""
KAISER_BETA = 5.0


def resampled(sound_S: np.ndarray, source_rate: int, rate: int) -> np.ndarray:
    """Resamples sound with a polyphase filter: a sinc in a Kaiser window, as `scipy.signal.resample_poly`.

    The filter and the sums are in float64, so the result does not depend on the machine.

    Args:
        sound_S: sound, float32.
        source_rate: its sample rate in Hz.
        rate: sample rate of the result in Hz.

    Returns:
        Sound (M,), float32.
    """
    common = math.gcd(source_rate, rate)
    up, down = rate // common, source_rate // common
    if up == down:
        return sound_S
    half = CROSSINGS * max(up, down)
    position_H = np.arange(-half, half + 1)
    filter_H = np.sinc(position_H / max(up, down)) * np.kaiser(len(position_H), KAISER_BETA)
    # The gain of `up` makes up for the zeros between samples. Some phases read the padding beside the filter.
    filter_H = np.pad(filter_H * (up / filter_H.sum()), up)
    before, after = half // up, -(-half // up)
    # Sample m of the result is at position m * down of the sound with up - 1 zeros after each sample.
    resampled_M = np.empty(-(-len(sound_S) * up // down), np.float32)
    padded_S = np.pad(sound_S, (before, after + down))
    window_SJ = np.lib.stride_tricks.sliding_window_view(padded_S, before + 1 + after)
    for phase in range(up):
        begin, rest = divmod(phase * down, up)
        filter_J = filter_H[up + half + rest - up * np.arange(-before, after + 1)]
        count = len(resampled_M[phase::up])
        resampled_M[phase::up] = window_SJ[begin::down][:count] @ filter_J
    return resampled_M
