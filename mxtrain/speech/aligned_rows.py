"""Symbols with durations: rows of manifests, and the position of each frame. Exported folders have a copy of this
module.

Legend: T frames, L symbols of an utterance.
"""

from __future__ import annotations

import math
from typing import Dict, Optional, Sequence, Tuple

import numpy as np

from mxtrain.errors import did_you_mean
from mxtrain.files.text_lines import split_words
from mxtrain.speech.log_mel import FrameNumbers

TEXT_KEYS = ("text", "transcript", "sentence")
PHONEMES = "phonemes"
UNITS = {"durations_frames": False, "durations_s": True}
"""The keys of durations, and whether these are seconds."""
MAX_SYMBOLS, MAX_SECONDS = 5000, 3600.0
_MAX_FRAMES = 1_000_000
NUM_POSITION_VALUES = 4
"""Number of values that describe the position of a frame, see `frame_positions`."""
_SECOND = 100.0


def symbols_of_row(row: Dict[str, object]) -> Tuple[Sequence[str], str]:
    """Returns the symbols of a line (its phonemes, otherwise the characters of its text), and its text.

    Raises:
        ValueError: the line has no symbols.
    """
    text = next((row[key] for key in TEXT_KEYS if key in row), None)
    phonemes = row.get(PHONEMES)
    if isinstance(phonemes, str):
        phonemes = split_words(phonemes)
    if phonemes is None:
        if not isinstance(text, str) or not text:
            raise ValueError(f"has no symbols: neither '{PHONEMES}' nor a text in one of {', '.join(TEXT_KEYS)}")
        phonemes = list(text)
    elif not isinstance(phonemes, list) or not all(isinstance(name, str) and name for name in phonemes) or not phonemes:
        raise ValueError(f"has '{PHONEMES}' that are no list of names")
    if len(phonemes) > MAX_SYMBOLS:
        raise ValueError(f"has {len(phonemes):,} symbols; at most {MAX_SYMBOLS:,} are read as one utterance")
    return phonemes, text if isinstance(text, str) else " ".join(phonemes)


def durations_of_row(row: Dict[str, object], count: int) -> Tuple[Sequence[float], bool]:
    """Returns the durations of a line, and True if they are in seconds.

    Raises:
        ValueError: the line has no durations of `count` symbols.
    """
    keys = [key for key in UNITS if key in row]
    if len(keys) != 1:
        similar: Optional[str] = next((key for key in row if key.startswith("duration") and key != "duration"), None)
        hint = did_you_mean(similar, list(UNITS)) if similar and not keys else ""
        has = "both" if keys else "neither"
        raise ValueError(f"needs one of {' and '.join(UNITS)}, and has {has}.{hint}".rstrip(".?"))
    key, values = keys[0], row[keys[0]]
    if not isinstance(values, list):
        raise ValueError(f"has {key} that are no list")
    if len(values) != count:
        raise ValueError(f"has {len(values):,} {key} for {count:,} symbols")
    in_seconds = UNITS[key]
    for index, value in enumerate(values):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MAX_FRAMES
        if not is_number or not (in_seconds or value == int(value)):
            expected = "a number of seconds" if in_seconds else "a whole number of frames"
            raise ValueError(f"has {value!r:.40} in {key}, at symbol {index + 1}; each is {expected}, at least 0")
    total = math.fsum(values)
    if not 0 < total <= (MAX_SECONDS if in_seconds else _MAX_FRAMES):
        raise ValueError(f"has {key} that add up to {total:g}")
    return values, in_seconds


def frames_of_symbols(durations: Sequence[float], in_seconds: bool, features: FrameNumbers) -> np.ndarray:
    """Returns the frames of each symbol, (L,) int64. Ends are rounded, not durations, so that no error adds up.

    Args:
        durations: duration of each symbol.
        in_seconds: whether these are seconds; otherwise frames.
        features: settings of the frames.
    """
    if not in_seconds:
        return np.asarray(durations, np.int64)
    end_L = np.rint(np.cumsum(durations) * features.sample_rate / features.step).astype(np.int64)
    return np.diff(end_L, prepend=0)


def frame_positions(duration_L: np.ndarray) -> np.ndarray:
    """Returns the position of each frame, (T, 4): elapsed share of its symbol, logarithm of the symbol's duration, and
    the distances to the beginning and the end of the utterance in hundreds of frames."""
    end_L = np.cumsum(duration_L)
    total = int(end_L[-1])
    duration_T = np.repeat(duration_L, duration_L)
    middle_T = np.arange(total) + 0.5
    elapsed_T = (middle_T - np.repeat(end_L - duration_L, duration_L)) / np.maximum(duration_T, 1)
    columns = (elapsed_T, np.log1p(duration_T) / 4, middle_T / _SECOND, (total - middle_T) / _SECOND)
    return np.stack(columns, axis=1).astype(np.float32)
