"""Reads lines of JSON with symbols and durations: manifests of recordings, and inputs of synthesis.

    {"audio_filepath": "1.wav", "text": "no", "durations_s": [0.12, 0.31]}
    {"audio_filepath": "1.wav", "text": "no", "phonemes": ["N", "OW"], "durations_frames": [10, 27]}
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from mxtrain.data.checking.problems import UNREADABLE_ROW, DataPlace, Findings, Problem
from mxtrain.data.loading.regular_files import read_text
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.text_lines import split_words
from mxtrain.speech.aligned import Aligned
from mxtrain.speech.utterances import TEXT_KEYS, Utterance, json_rows, utterance_of

PHONEMES = "phonemes"
UNITS = {"durations_frames": False, "durations_s": True}
"""The keys of durations, and whether these are seconds."""
MOST_SYMBOLS, MOST_SECONDS = 5000, 3600.0
_MOST_FRAMES = 1_000_000


def read_aligned(path: str, findings: Findings, has_audio: bool = True) -> List[Aligned]:
    """Returns the utterances of a file, one in each line that is not empty.

    Args:
        path: of the file; recordings are named relative to its folder.
        findings: collects problems of lines.
        has_audio: whether lines name recordings.

    Raises:
        DataError: it cannot be read, has no utterances, or a line is wrong.
    """
    folder, found = Path(path).parent, []
    for line, row in json_rows(path, read_text(path, findings), findings):
        place = DataPlace(path, line)
        try:
            symbols, text = _symbols(row)
            durations, in_seconds = _durations(row, len(symbols))
            utterance = utterance_of({"text": text, **row}, folder, place) if has_audio else Utterance("", text, place)
        except ValueError as error:
            findings.refuse(Problem(UNREADABLE_ROW, place, f"{place} {error}."))
            continue
        found.append(Aligned(utterance, symbols, durations, in_seconds))
    if not found and not findings.keeps_going:
        raise DataError(f"{path}: there are no utterances.")
    return found


def _symbols(row: Dict[str, object]) -> Tuple[Sequence[str], str]:
    """Symbols of a line: its phonemes, or else each character of its text, as it is written; and its text.

    Raises:
        ValueError: there are none.
    """
    text = next((row[key] for key in TEXT_KEYS if key in row), None)
    phonemes = row.get(PHONEMES)
    if isinstance(phonemes, str):
        phonemes = split_words(phonemes)
    if phonemes is None:
        if not isinstance(text, str) or not text:
            raise ValueError(f"has no symbols: neither '{PHONEMES}' nor a text in one of {', '.join(TEXT_KEYS)}")
        phonemes = list(text)
    elif not isinstance(phonemes, list) or not all(isinstance(one, str) and one for one in phonemes) or not phonemes:
        raise ValueError(f"has '{PHONEMES}' that are no list of names")
    if len(phonemes) > MOST_SYMBOLS:
        raise ValueError(f"has {len(phonemes):,} symbols; at most {MOST_SYMBOLS:,} are read as one utterance")
    return phonemes, text if isinstance(text, str) else " ".join(phonemes)


def _durations(row: Dict[str, object], count: int) -> Tuple[Sequence[float], bool]:
    """Durations of a line, and whether they are seconds.

    Raises:
        ValueError: they are no durations of so many symbols.
    """
    keys = [key for key in UNITS if key in row]
    if len(keys) != 1:
        near: Optional[str] = next((key for key in row if key.startswith("duration") and key != "duration"), None)
        hint = did_you_mean(near, list(UNITS)) if near and not keys else ""
        has = "both" if keys else "neither"
        raise ValueError(f"needs one of {' and '.join(UNITS)}, and has {has}.{hint}".rstrip(".?"))
    key, values = keys[0], row[keys[0]]
    if not isinstance(values, list):
        raise ValueError(f"has {key} that are no list")
    if len(values) != count:
        raise ValueError(f"has {len(values):,} {key} for {count:,} symbols")
    in_seconds = UNITS[key]
    for place, value in enumerate(values):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MOST_FRAMES
        if not is_number or not (in_seconds or value == int(value)):
            wanted = "a number of seconds" if in_seconds else "a whole number of frames"
            raise ValueError(f"has {value!r:.40} in {key}, at symbol {place + 1}; each is {wanted}, at least 0")
    total = math.fsum(values)
    if not 0 < total <= (MOST_SECONDS if in_seconds else _MOST_FRAMES):
        raise ValueError(f"has {key} that add up to {total:g}")
    return values, in_seconds
