"""AISHELL-1: one file of transcripts, and recordings in folders of splits and speakers."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Dict, List, Literal, Optional

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    MISSING_COUNTERPART,
    UNREADABLE_ROW,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.loading.dataset_files import read_text, require_exists, walk
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.errors import DataError
from mxtrain.files.text_lines import BLANKS, split_lines
from mxtrain.speech.audio import AudioDataset, Parts
from mxtrain.speech.utterances import Utterance
from mxtrain.types import PathText

TRANSCRIPTS = "aishell_transcript_v0.8.txt"
SPLITS = ("train", "dev", "test")


class Aishell(AudioDataset):
    """Utterances of AISHELL-1. Its transcripts separate words by spaces, which are not spoken.

    Source: Bu et al., "AISHELL-1: An Open-Source Mandarin Speech Corpus and a Speech Recognition Baseline" (2017).
    """

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    root: PathText = "data/aishell"
    """Folder with transcript/ and wav/ (data_aishell in the archive); by default in the folder that MXTRAIN_DATA names,
    else in data/."""
    spaces: Literal["remove", "keep"] = "remove"
    """Spaces between the words of transcripts; remove = the characters alone."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        folders = [str(Path(name).parent) for name in files.named(TRANSCRIPTS)]
        root = next((folder[: -len("transcript")] for folder in folders if Path(folder).name == "transcript"), None)
        if root is None:
            return None
        settings = {"root": files.typed(root.rstrip("/"))}
        return Recognised("AISHELL-1", settings, "speech_recognition", Certainty.SURE)

    def utterances(self, findings: Findings) -> Parts:
        """See `AudioDataset.utterances`."""
        by_split = read_aishell(self.root, self.spaces == "remove", findings)
        val, test = (by_split[name] or None for name in SPLITS[1:])
        return self.root, by_split["train"], val, test


def read_aishell(root: str, without_spaces: bool, findings: Findings) -> Dict[str, List[Utterance]]:
    """Reads the utterances of each split.

    Args:
        root: folder with transcript/ and wav/.
        without_spaces: remove the spaces of transcripts.
        findings: gets the problems of lines.

    Raises:
        DataError: a folder is missing, or archives of speakers are not unpacked.
    """
    path, wav = Path(root) / "transcript" / TRANSCRIPTS, Path(root) / "wav"
    require_exists(path)
    require_exists(wav)
    _refuse_archives(wav)
    by_split: Dict[str, List[Utterance]] = {name: [] for name in SPLITS}
    recordings = {each.stem: each for each, _ in walk(wav, (".wav",), findings=findings)}
    location_of: Dict[str, DataLocation] = {}
    for number, line in enumerate(split_lines(read_text(path, findings)), start=1):
        if not line.strip(BLANKS):
            continue
        location, (name, _, text) = DataLocation(str(path), number), line.strip(BLANKS).partition(" ")
        if name in location_of:
            fact = f"{location} is about '{name}', as {location_of[name]} is."
            findings.refuse(Problem(LISTED_TWICE, location, fact, "Remove one."))
            continue
        location_of[name] = location
        if not text:
            fact = f"{location} has no transcript behind a name and a space: '{line:.60}'."
            findings.refuse(Problem(UNREADABLE_ROW, location, fact, "Write it, or remove the line."))
            continue
        recording = recordings.get(name)
        split = "" if recording is None else recording.relative_to(wav).parts[0]
        if recording is None or split not in by_split:
            fact = f"{location} is about '{name}', and there is no {name}.wav in '{wav}'/{{{','.join(SPLITS)}}}/."
            findings.refuse(Problem(MISSING_COUNTERPART, location, fact, "Restore it, or remove the line."))
            continue
        spoken = "".join(text.split()) if without_spaces else text
        by_split[split].append(Utterance(str(recording), spoken, location, speaker=recording.parent.name))
    # AISHELL-1 itself has 325 recordings without a transcript.
    for name in sorted(recordings.keys() - location_of.keys()):
        fact = f"'{recordings[name]}' has no line in {path}."
        findings.remark(Problem(MISSING_COUNTERPART, DataLocation(str(recordings[name])), fact, "It is left out."))
    if not by_split["train"] and not findings.keeps_going:
        raise DataError(
            f"'{wav}' holds no utterances for training: there are no train/SPEAKER/*.wav with a transcript."
        )
    return by_split


def _refuse_archives(wav: Path) -> None:
    """Raises a `DataError` if archives of speakers are not unpacked: the archive of AISHELL-1 contains archives."""
    unpacked = {each.name for split in SPLITS for each in (wav / split).glob("*")}
    packed = [each for each in sorted(wav.glob("*.tar.gz")) if each.name[: -len(".tar.gz")] not in unpacked]
    if packed:
        raise DataError(
            f"'{wav}' holds {len(packed):,} archives that are not unpacked, such as {packed[0].name}. Type "
            f"cd {wav} && for each in *.tar.gz; do tar xzf $each; done"
        )
