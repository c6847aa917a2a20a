"""Cuts long recordings into parts for prediction, where they are quiet. Sentences are not known, so a cut in the middle
of a word is possible where nobody pauses.

Legend: S samples of sound, T steps.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import numpy as np

from mxtrain.speech.recording import RecordingError, read_header, read_recording
from mxtrain.speech.utterances import Utterance

_RATE = 8000
"""Sample rate at which quiet places are looked for, in Hz."""
_STEP_S, _PAUSE_STEPS = 0.02, 15
"""Step of the search, and number of steps over which the power is averaged: pauses between words are about as long."""


def quietest(sound_S: np.ndarray, rate: int) -> float:
    """Returns the middle of the quietest 0.3 s in the second half of a sound, in seconds."""
    step = round(_STEP_S * rate)
    count = len(sound_S) // step
    power_T = np.square(sound_S[: count * step], dtype=np.float64).reshape(count, step).mean(axis=1)
    first = count // 2
    # The window must not reach beyond the sound, whose continuation may be loud.
    mean_T = np.convolve(power_T[first:], np.full(_PAUSE_STEPS, 1 / _PAUSE_STEPS), mode="valid")
    return (first + int(mean_T.argmin()) + _PAUSE_STEPS / 2) * _STEP_S


def cut_recording(utterance: Utterance, longest_s: float) -> List[Utterance]:
    """Returns the parts of a recording, of at most `longest_s` each, that follow each other without gaps; the recording
    itself if it is short enough, or cannot be read."""
    try:
        total_s = read_header(utterance.path).seconds
        parts, begin_s = [], 0.0
        while total_s - begin_s > longest_s:
            cut_s = _quietest_part(utterance.path, begin_s, longest_s)
            parts.append(utterance._replace(begin_s=begin_s, duration_s=cut_s))
            begin_s += cut_s
    except RecordingError:
        return [utterance]  # the reader of frames says why
    return [*parts, utterance._replace(begin_s=begin_s)]


def _quietest_part(path: str, begin_s: float, longest_s: float) -> float:
    try:
        return quietest(read_recording(path, _RATE, begin_s, longest_s), _RATE)
    except RecordingError as error:
        if error.kind != "silent_audio":
            raise
        return longest_s


def cut_recordings(utterances: Sequence[Utterance], longest_s: float) -> Tuple[List[Utterance], List[int]]:
    """Returns the parts of all recordings, and the index of the recording of each.

    Args:
        utterances: whole recordings.
        longest_s: maximum length of a part, in seconds.
    """
    parts: List[Utterance] = []
    numbers: List[int] = []
    for number, utterance in enumerate(utterances):
        cut = cut_recording(utterance, longest_s)
        parts += cut
        numbers += [number] * len(cut)
    return parts, numbers
