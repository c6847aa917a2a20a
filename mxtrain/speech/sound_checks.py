"""Refuses recordings that are cut or silent. Exported folders have a copy of this module.

Legend: S samples of sound, C channels.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from mxtrain.speech.sound_length import Read, find_sound_bytes

UNREADABLE_AUDIO, SILENT_AUDIO, CUT_AUDIO = "unreadable_audio", "silent_audio", "cut_audio"
MIN_RANGE = 2.0**-15
"""Difference of the largest and the smallest sample below which a recording is silent: one step of 16 bits."""


class SoundProblem(NamedTuple):
    """Reason why a recording is not used.

    Attributes:
        kind: kind of the problem.
        fact: end of a sentence that begins with the name of the recording.
    """

    kind: str
    fact: str


def problem_of_length(read: Read, num_bytes: int) -> Optional[SoundProblem]:
    """Returns the problem of a file with fewer bytes of sound than its header says, which libsndfile ignores.

    Args:
        read: reads bytes of the file.
        num_bytes: size of the file.
    """
    sound = find_sound_bytes(read)
    if sound is None or sound.length is None:
        return None
    present = max(num_bytes - sound.begin, 0)
    if sound.length <= present:
        return None
    return SoundProblem(CUT_AUDIO, f"is cut: {present / sound.length:.0%} of what its header says is there.")


def problem_of_missing(num_missing: int, rate: int) -> Optional[SoundProblem]:
    """Returns the problem of a recording that ends too early; times in manifests are rounded.

    Args:
        num_missing: number of samples that are expected and missing.
        rate: samples per second.
    """
    if num_missing <= max(0.02 * rate, 1):
        return None
    return SoundProblem(CUT_AUDIO, f"is cut: its last {num_missing / rate:.2f} s are missing.")


def problem_of_sound(sound_SC: np.ndarray, sound_S: np.ndarray) -> Optional[SoundProblem]:
    """Returns the problem of samples that are not finite, or all the same.

    Args:
        sound_SC: sound of all channels.
        sound_S: mean of the channels.
    """
    if not len(sound_S):
        return SoundProblem(SILENT_AUDIO, "is empty: its header says that it holds no sound.")
    if not np.isfinite(sound_S).all():
        return SoundProblem(UNREADABLE_AUDIO, "holds samples that are no finite numbers.")
    if float(np.ptp(sound_S)) >= MIN_RANGE:
        return None
    if (np.ptp(sound_SC, axis=0) >= MIN_RANGE).any():
        fact = f"is silent: the mean of its {sound_SC.shape[1]} channels is, which cancel each other. Save one of them."
        return SoundProblem(SILENT_AUDIO, fact)
    return SoundProblem(SILENT_AUDIO, "is silent: all of its samples are the same.")
