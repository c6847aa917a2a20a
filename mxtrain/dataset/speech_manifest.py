"""Recordings that manifests list: lines of JSON as NeMo's and Baidu's Deep Speech have them, or Mozilla's CSV."""

from __future__ import annotations

from typing import List, Optional, Union

from mxtrain.dataset.checking.problems import Findings
from mxtrain.dataset.speech.audio import AudioDataset, Parts
from mxtrain.dataset.speech.utterances import Utterance, read_manifest
from mxtrain.types import PathText

Files = Union[PathText, List[PathText]]


class SpeechManifest(AudioDataset):
    """Utterances of manifests, which say by their content what they are."""

    train: Files = "data/speech/train.jsonl"
    """Manifest of training utterances, or a list of them."""
    val: Optional[Files] = None
    """Likewise for validation; null = val_fraction of the training utterances."""
    test: Optional[Files] = None
    """Likewise for testing; null = test_fraction of the training utterances."""

    def utterances(self, findings: Findings) -> Parts:
        """See `AudioDataset.utterances`."""

        def read(files: Files) -> List[Utterance]:
            paths = [files] if isinstance(files, str) else files
            return [one for path in paths for one in read_manifest(path, findings)]

        train = read(self.train)
        val, test = (None if files is None else read(files) for files in (self.val, self.test))
        name = self.train if isinstance(self.train, str) else ", ".join(self.train)
        return name, train, val, test
