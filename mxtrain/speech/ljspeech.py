"""LJ Speech, and other data in its layout: metadata.csv with cells between vertical bars, and wavs/ beside it."""

from __future__ import annotations

import logging
import os
from typing import ClassVar, Dict, List, Literal, Optional

from mxtrain.data.checking.problems import LISTED_TWICE, UNREADABLE_ROW, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import read_text, require_exists
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.errors import DataError
from mxtrain.files.text_lines import BLANKS, split_lines
from mxtrain.speech.audio import AudioDataset, Parts
from mxtrain.speech.recording import ENDINGS
from mxtrain.speech.utterances import Utterance
from mxtrain.types import PathText

METADATA, WAVS = "metadata.csv", "wavs"
Column = Literal["normalized", "raw"]

log = logging.getLogger(__name__)


class LJSpeech(AudioDataset):
    """Utterances of metadata.csv: lines ID|TEXT|NORMALIZED TEXT or ID|TEXT, without a header and without quotes.

    Source: Ito and Johnson, "The LJ Speech Dataset" (2017).
    """

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    root: PathText = "data/ljspeech"
    """Folder with metadata.csv and wavs/; by default in the folder that MXTRAIN_DATA names, else in data/."""
    text: Column = "normalized"
    """Transcript: normalized = the third cell, where numbers and abbreviations are words; raw = the second cell."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        for name in files.named(METADATA):
            folder = name.rpartition("/")[0]
            lines = files.lines(name, 20)[:-1] or files.lines(name, 1)
            if files.has(os.path.join(folder, WAVS)) and all(line.count("|") in (1, 2) for line in lines):
                settings = {"root": files.typed(folder)}
                remark = "task=speech_synthesis needs durations too: dataset=aligned_manifest."
                return Recognised("LJ Speech", settings, "speech_recognition", Certainty.SURE, remark=remark)
        return None

    def utterances(self, findings: Findings) -> Parts:
        """See `AudioDataset.utterances`."""
        return self.root, read_ljspeech(self.root, self.text, findings), None, None


def read_ljspeech(root: str, column: Column, findings: Findings) -> List[Utterance]:
    """Reads the utterances of metadata.csv.

    Args:
        root: folder with metadata.csv and wavs/.
        column: cell with the transcript. Lines of two cells have one transcript, if no line has three.
        findings: gets the problems of lines.

    Raises:
        DataError: there are no utterances.
    """
    path = os.path.join(root, METADATA)
    require_exists(path)
    rows: Dict[str, List[str]] = {}
    location_of: Dict[str, DataLocation] = {}
    for number, line in enumerate(split_lines(read_text(path, findings)), start=1):
        if not line.strip(BLANKS):
            continue
        location, (name, *texts) = DataLocation(path, number), line.split("|")
        name = name.strip(BLANKS)
        if len(texts) not in (1, 2) or not name:
            fact = f"{location} has {len(texts) + 1} cells between vertical bars: '{line:.60}'."
            findings.refuse(Problem(UNREADABLE_ROW, location, fact, "Write ID|TEXT|NORMALIZED TEXT, or ID|TEXT."))
        elif name in rows:
            fact = f"{location} is about '{name}', as {location_of[name]} is."
            findings.refuse(Problem(LISTED_TWICE, location, fact, "Remove one."))
        else:
            rows[name], location_of[name] = texts, location
    width = max(map(len, rows.values()), default=0)
    if width == 1 and column == "normalized":
        log.info("dataset=ljspeech: the lines of %s have one text, which is the transcript", path)
    utterances = []
    for name, texts in rows.items():
        location = location_of[name]
        if len(texts) < width:
            fact = f"{location} has no normalized text, which other lines have."
            findings.refuse(Problem(UNREADABLE_ROW, location, fact, "Add it."))
            continue
        file = name if name.lower().endswith(ENDINGS) else f"{name}.wav"
        text = texts[0] if column == "raw" else texts[-1]
        utterances.append(Utterance(os.path.join(root, WAVS, file), text, location))
    if not utterances and not findings.keeps_going:
        raise DataError(f"{path}: there are no utterances.")
    return utterances
