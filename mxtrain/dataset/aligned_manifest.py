"""Recordings with durations of their characters or phonemes, as manifests list them: lines of JSON like NeMo's."""

from __future__ import annotations

from typing import List, Optional, Union

from mxtrain.dataset.checking.problems import Findings
from mxtrain.dataset.speech.aligned import Aligned
from mxtrain.dataset.speech.aligned_dataset import AlignedDataset, Parts
from mxtrain.dataset.speech.aligned_lines import read_aligned
from mxtrain.types import PathText

Files = Union[PathText, List[PathText]]


class AlignedManifest(AlignedDataset):
    """Utterances of manifests: `audio_filepath`, `text` or `phonemes`, and `durations_frames` or `durations_s`."""

    train: Files = "data/synthesis/train.jsonl"
    """Manifest of training utterances, or a list of them."""
    val: Optional[Files] = None
    """Likewise for validation; null = val_fraction of the training utterances."""
    test: Optional[Files] = None
    """Likewise for testing; null = test_fraction of the training utterances."""

    def utterances(self, findings: Findings) -> Parts:
        """See `AlignedDataset.utterances`."""

        def read(files: Files) -> List[Aligned]:
            paths = [files] if isinstance(files, str) else files
            return [one for path in paths for one in read_aligned(path, findings)]

        train = read(self.train)
        val, test = (None if files is None else read(files) for files in (self.val, self.test))
        name = self.train if isinstance(self.train, str) else ", ".join(self.train)
        return name, train, val, test
