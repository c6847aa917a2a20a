"""Kaldi's data folders: wav.scp, text, and segments where recordings have parts."""

from __future__ import annotations

import os
from typing import ClassVar, List, Literal, Optional

from mxtrain.data.checking.problems import Findings
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.speech.audio import AudioDataset, Parts
from mxtrain.speech.utterances import Utterance, read_kaldi
from mxtrain.types import PathText


class Kaldi(AudioDataset):
    """Utterances of folders as Kaldi has them. A command in wav.scp (a line that ends in |) is refused, never run."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    train: PathText = "data/kaldi/train"
    """Folder of training utterances, with wav.scp and text; commands in wav.scp are refused, never run."""
    val: Optional[PathText] = None
    """Likewise for validation; null = val_fraction of the training utterances."""
    test: Optional[PathText] = None
    """Likewise for testing; null = test_fraction of the training utterances."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        folders = [
            name.rpartition("/")[0] for name in files.named("wav.scp") if files.has(os.path.join(name[:-7], "text"))
        ]
        splits = files.by_split(folders)
        if not splits:
            return None
        settings = {split: files.typed(folder) for split, folder in splits.items()}
        return Recognised("Kaldi's data folders", settings, "speech_recognition", Certainty.SURE)

    def utterances(self, findings: Findings) -> Parts:
        """See `AudioDataset.utterances`."""
        train = read_kaldi(self.train, findings)
        held_out: List[Optional[List[Utterance]]] = [
            None if folder is None else read_kaldi(folder, findings) for folder in (self.val, self.test)
        ]
        return self.train, train, held_out[0], held_out[1]
