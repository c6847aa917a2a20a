"""Recordings that `predict` is given: files, and all recordings in folders."""

from __future__ import annotations

import itertools
import os
from typing import Dict, List, Optional, Sequence

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.loading.dataset_files import walk
from mxtrain.data.loading.input_files import key_of_file
from mxtrain.errors import DataError
from mxtrain.speech.recording import ENDINGS, SILENT_AUDIO
from mxtrain.speech.utterances import Utterance


def find_recordings(names: Sequence[str]) -> List[Utterance]:
    """Returns the recordings of files and folders.

    Raises:
        DataError: a folder holds none.
    """
    utterances: List[Utterance] = []
    for name in names:
        paths = [str(path) for path, _ in walk(name, ENDINGS)] if os.path.isdir(name) else [name]
        if not paths:
            raise DataError(f"'{name}' holds no recordings: no file ends in {', '.join(ENDINGS)}.")
        utterances += [Utterance(path, "", DataLocation(path)) for path in paths]
    return utterances


def find_usable(
    utterances: Sequence[Utterance],
    problems: Sequence[str],
    skip_unreadable: bool,
    unreadable: Dict[int, str],
    numbers: Optional[Sequence[int]] = None,
) -> List[int]:
    """Returns the indices of recordings, or of parts of recordings, without problems. A part that is silent is left
    out, unless all parts of its recording are.

    Args:
        utterances: the recordings or parts.
        problems: problem of each, see `prepared.Computed.problem`.
        skip_unreadable: continue if a recording has a problem.
        unreadable: gets the problems by `key_of_file`.
        numbers: number of the recording of each part, ascending; None = there are no parts.

    Raises:
        DataError: a recording has a problem.
    """
    numbers = range(len(utterances)) if numbers is None else numbers
    kept: List[int] = []
    for number, group in itertools.groupby(range(len(utterances)), lambda index: numbers[index]):
        parts = list(group)
        sounding = [index for index in parts if not problems[index].startswith(f"{SILENT_AUDIO}\t")] or parts
        wrong = next((index for index in sounding if problems[index]), None)
        if wrong is None:
            kept += sounding
            continue
        fact = f"'{utterances[wrong].path}' {problems[wrong].partition(chr(9))[2]}"
        if not skip_unreadable:
            raise DataError(f"{fact} Replace or remove it, or type skip_unreadable=true to go on without it.")
        unreadable[key_of_file(number)] = fact
    return kept
