"""Reads lines of JSON with symbols and durations: manifests of recordings, and inputs of synthesis.

{"audio_filepath": "1.wav", "text": "no", "durations_s": [0.12, 0.31]}
{"audio_filepath": "1.wav", "text": "no", "phonemes": ["N", "OW"], "durations_frames": [10, 27]}
"""

from __future__ import annotations

from pathlib import Path
from typing import List

from mxtrain.data.checking.problems import UNREADABLE_ROW, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import read_text
from mxtrain.errors import DataError
from mxtrain.speech.aligned import AlignedUtterance
from mxtrain.speech.aligned_rows import durations_of_row, symbols_of_row
from mxtrain.speech.utterances import Utterance, json_rows, utterance_of


def read_aligned(path: str, findings: Findings, has_audio: bool = True) -> List[AlignedUtterance]:
    """Reads the utterances of a file, one per non-empty line.

    Args:
        path: path of the file; recordings are relative to its folder.
        findings: collects problems of lines.
        has_audio: True if lines name recordings.

    Raises:
        DataError: the file cannot be read, has no utterances, or a line is invalid.
    """
    folder, utterances = Path(path).parent, []
    for line, row in json_rows(path, read_text(path, findings), findings):
        location = DataLocation(path, line)
        try:
            symbols, text = symbols_of_row(row)
            durations, in_seconds = durations_of_row(row, len(symbols))
            utterance = (
                utterance_of({"text": text, **row}, folder, location) if has_audio else Utterance("", text, location)
            )
        except ValueError as error:
            findings.refuse(Problem(UNREADABLE_ROW, location, f"{location} {error}."))
            continue
        utterances.append(AlignedUtterance(utterance, symbols, durations, in_seconds))
    if not utterances and not findings.keeps_going:
        raise DataError(f"{path}: there are no utterances.")
    return utterances
