"""Recordings with durations of their characters or phonemes, as manifests list them: lines of JSON like NeMo's."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, Optional

from mxtrain.data.checking.problems import Findings
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.speech.aligned_dataset import AlignedDataset, Parts
from mxtrain.speech.aligned_lines import read_aligned
from mxtrain.speech.manifests import Files, read_parts


class AlignedManifest(AlignedDataset):
    """Utterances of manifests: `audio_filepath`, `text` or `phonemes`, and `durations_frames` or `durations_s`."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    train: Files = "data/synthesis/train.jsonl"
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
            for name in files.find(".jsonl", ".json")
            if {"durations_frames", "durations_s"} & set(files.columns(name))
        ]
        settings = files.typed_splits(manifests)
        form = "manifests of recordings with durations"
        return Recognised(form, settings, "speech_synthesis", Certainty.SURE + 1) if settings else None

    def utterances(self, findings: Findings) -> Parts:
        """See `AlignedDataset.utterances`."""
        return read_parts(partial(read_aligned, findings=findings), self.train, self.val, self.test)
