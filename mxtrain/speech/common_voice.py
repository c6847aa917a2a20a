"""Mozilla Common Voice: tables of tab-separated values, and clips in MP3 beside them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import ClassVar, Dict, List, Literal, Optional, Union

from mxtrain.data.checking.problems import LISTED_TWICE, UNREADABLE_ROW, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import exists, read_text
from mxtrain.data.recognition import Certainty, FileTree, Recognised, Setting
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.text_lines import split_lines
from mxtrain.files.text_numbers import parse_finite
from mxtrain.speech.audio import AudioDataset, Parts
from mxtrain.speech.utterances import CLIPS, Utterance, read_manifest
from mxtrain.types import PathText

Tables = Union[str, List[str]]
"""Name of a table without .tsv, or several."""
DURATIONS = "clip_durations.tsv"
"""Table of later releases with the length of each clip, in milliseconds."""
_ENCODER_S = 0.2
"""Seconds by which a decoded MP3 may be shorter than its stated length, as decoders drop the encoder's padding."""

log = logging.getLogger(__name__)


class CommonVoice(AudioDataset):
    """Utterances of a language of Common Voice, in any release: only the columns `path` and `sentence` are read.

    Source: Ardila et al., "Common Voice: A Massively-Multilingual Speech Corpus" (2020).
    """

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    root: PathText = "data/common_voice"
    """Folder of one language, with the tables and clips/; by default in the folder that MXTRAIN_DATA names, else in
    data/."""
    train: Tables = ["train"]
    """Tables to train on, files NAME.tsv in root, e.g. [validated]; clips of val and test are left out."""
    val: Optional[Tables] = ["dev"]
    """Tables to validate with; null = val_fraction of the training utterances."""
    test: Optional[Tables] = ["test"]
    """Tables to test with; null = test_fraction of the training utterances."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        tables = [name for name in files.find(".tsv") if {"path", "sentence"} <= set(files.columns(name))]
        folder = next((name.rpartition("/")[0] for name in tables), None)
        if folder is None:
            return None
        names = [name.rpartition("/")[2][: -len(".tsv")] for name in tables if name.rpartition("/")[0] == folder]
        train = next((name for name in ("train", "validated") if name in names), None)
        if train is None:
            return None
        settings: Dict[str, Setting] = {"root": files.typed(folder)}
        settings.update({} if train == "train" else {"train": [train]})
        settings.update({split: "null" for split, name in (("val", "dev"), ("test", "test")) if name not in names})
        languages = {name.rpartition("/")[0] for name in tables}
        remark = f"There are {len(languages)} languages; name one." if len(languages) > 1 else ""
        return Recognised("Common Voice's tables", settings, "speech_recognition", Certainty.SURE, remark=remark)

    def utterances(self, findings: Findings) -> Parts:
        """See `AudioDataset.utterances`."""
        seconds = read_durations(os.path.join(self.root, DURATIONS), findings)
        # Tables are read in this order, so that clips of val and test are known when those of train are read.
        val, test = (None if names is None else self._read(names, seconds, findings) for names in (self.val, self.test))
        held_out = {utterance.path for part in (val, test) for utterance in part or ()}
        train = self._read(self.train, seconds, findings)
        kept = [utterance for utterance in train if utterance.path not in held_out]
        if len(kept) < len(train):
            log.info(
                "dataset=common_voice: %s of %s utterances of dataset.train are in the tables of dataset.val or "
                "dataset.test, and are not trained on",
                f"{len(train) - len(kept):,}",
                f"{len(train):,}",
            )
        return self.root, kept, val, test

    def _read(self, names: Tables, seconds: Dict[str, float], findings: Findings) -> List[Utterance]:
        utterances: Dict[str, Utterance] = {}
        for name in [names] if isinstance(names, str) else names:
            path = Path(self.root) / f"{name}.tsv"
            if not exists(path):
                raise DataError(_missing_table(Path(self.root), name))
            for utterance in read_manifest(str(path), findings):
                earlier = utterances.get(utterance.path)
                if earlier is not None and earlier.location.file == utterance.location.file:
                    fact = (
                        f"{utterance.location} is about '{os.path.basename(utterance.path)}', as {earlier.location} is."
                    )
                    findings.refuse(Problem(LISTED_TWICE, utterance.location, fact, "Remove one."))
                    continue
                stated_s = seconds.get(os.path.basename(utterance.path), 0.0)
                # Tables overlap: validated.tsv also has the rows of train.tsv.
                utterances.setdefault(utterance.path, utterance._replace(stated_s=max(stated_s - _ENCODER_S, 0.0)))
        return list(utterances.values())


def read_durations(path: str, findings: Findings) -> Dict[str, float]:
    """Returns clip -> length in seconds of `clip_durations.tsv`; empty if there is none."""
    seconds: Dict[str, float] = {}
    if not exists(path):
        return seconds
    for number, line in enumerate(split_lines(read_text(path, findings)), start=1):
        clip, _, value = line.partition("\t")
        milliseconds = parse_finite(value)
        if milliseconds is not None and milliseconds >= 0:
            seconds[clip] = milliseconds / 1000
        elif number > 1 and line.strip():  # line 1 is the header
            location = DataLocation(path, number)
            fact = f"{location} is no name of a clip, a tab and its length in milliseconds: '{line:.60}'."
            findings.refuse(Problem(UNREADABLE_ROW, location, fact, "Correct it, or remove this table."))
    return seconds


def _missing_table(root: Path, name: str) -> str:
    """Returns the error message for a missing table."""
    names = sorted(path.stem for path in root.glob("*.tsv")) if root.is_dir() else []
    languages = sorted(path.parent for path in root.glob(f"*/{name}.tsv")) if root.is_dir() else []
    if languages:
        return f"'{root}' has no {name}.tsv, but folders below have: type dataset.root={languages[0]}."
    if not names:
        return f"'{root}' holds no tables. Name the folder with {name}.tsv and {CLIPS}/ in it by dataset.root=FOLDER."
    return (
        f"'{root}' has no {name}.tsv.{did_you_mean(name, names)} There: {', '.join(names[:12])}. Choose with "
        "dataset.train=[...], dataset.val=[...] and dataset.test=[...]; null for val or test holds out a share."
    )
