"""Recordings that manifests list: lines of JSON as NeMo's and Baidu's Deep Speech have them, or Mozilla's CSV."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, Optional

from mxtrain.data.checking.problems import Findings
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.speech.audio import AudioDataset, Parts
from mxtrain.speech.manifests import Files, read_parts
from mxtrain.speech.utterances import read_manifest


class SpeechManifest(AudioDataset):
    """Utterances of manifests, which say by their content what they are."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    train: Files = "data/speech/train.jsonl"
    """Manifest of training utterances, or a list of them; recordings are named relative to it."""
    val: Optional[Files] = None
    """Likewise for validation; null = val_fraction of the training utterances."""
    test: Optional[Files] = None
    """Likewise for testing; null = test_fraction of the training utterances."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        manifests = [
            name
            for name in files.find(".jsonl", ".json", ".csv")
            if {"audio_filepath", "wav_filename", "key"} & set(files.columns(name))
            and {"text", "transcript"} & set(files.columns(name))
        ]
        settings = files.typed_splits(manifests)
        return (
            Recognised("manifests of recordings", settings, "speech_recognition", Certainty.SURE) if settings else None
        )

    def utterances(self, findings: Findings) -> Parts:
        """See `AudioDataset.utterances`."""
        return read_parts(partial(read_manifest, findings=findings), self.train, self.val, self.test)
