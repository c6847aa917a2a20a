"""LibriSpeech, and other data in its layout: speaker/chapter/*.flac with a *.trans.txt in the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Dict, List, Literal, Optional, Sequence, Union

from mxtrain.data.checking.problems import Findings
from mxtrain.data.loading.dataset_files import exists
from mxtrain.data.loading.public_files import PUBLIC_FILES, PublicDataset
from mxtrain.data.recognition import Certainty, FileTree, Recognised, Setting
from mxtrain.errors import DataError, did_you_mean
from mxtrain.speech.audio import AudioDataset, Parts
from mxtrain.speech.utterances import Utterance, read_librispeech
from mxtrain.types import PathText

Folders = Union[str, List[str]]


class LibriSpeech(PublicDataset, AudioDataset):
    """Utterances of folders.

    Source: Panayotov et al., "Librispeech: an ASR corpus based on public domain audio books" (2015).
    """

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    root: PathText = "data/librispeech"
    """Folder of the parts; by default in the folder that MXTRAIN_DATA names, else in data/."""
    train: Folders = ["train-clean-100"]
    """Parts to train on, folders in root."""
    val: Optional[Folders] = ["dev-clean"]
    """Parts to validate with; null = val_fraction of the training utterances."""
    test: Optional[Folders] = ["test-clean"]
    """Parts to test with; null = test_fraction of the training utterances."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        transcripts = files.find(".trans.txt")
        parts = sorted({name.split("/")[0] for name in transcripts if name.count("/") >= 3})
        if not parts:
            return None
        splits = {
            split: [part for part in parts if part.startswith(word)]
            for split, word in (("train", "train"), ("val", "dev"), ("test", "test"))
        }
        splits["train"] = splits["train"] or [part for part in parts if not part.startswith(("dev", "test"))]
        settings: Dict[str, Setting] = {
            "root": files.typed(),
            **{key: names or "null" for key, names in splits.items()},
        }
        return Recognised("LibriSpeech's folders", settings, "speech_recognition", Certainty.SURE)

    @property
    def public_names(self) -> Sequence[str]:
        """Returns the parts that are named and published."""
        parts = [part for names in (self.train, self.val, self.test) for part in _listed(names)]
        return [name for part in parts if (name := f"librispeech-{part}") in PUBLIC_FILES]

    def utterances(self, findings: Findings) -> Parts:
        """See `AudioDataset.utterances`."""
        self.fetch()
        train = self._read(self.train, findings)
        val, test = (None if names is None else self._read(names, findings) for names in (self.val, self.test))
        return self.root, train, val, test

    def _read(self, names: Folders, findings: Findings) -> List[Utterance]:
        utterances: List[Utterance] = []
        for name in _listed(names):
            folder = Path(self.root) / name
            if not exists(folder):
                raise DataError(_missing(Path(self.root), name))
            utterances += read_librispeech(str(folder), findings)
        return utterances


def _listed(names: Optional[Folders]) -> List[str]:
    return [names] if isinstance(names, str) else names or []


def _missing(root: Path, name: str) -> str:
    """Returns the error message for a missing folder."""
    folders = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if not folders:
        return f"'{root}' holds no folders. Name the one with {name} in it by dataset.root=FOLDER."
    return (
        f"'{root}' has no {name}.{did_you_mean(name, folders)} There: {', '.join(folders[:12])}. Choose with "
        "dataset.train=[...], dataset.val=[...] and dataset.test=[...]; null for val or test holds out a share."
    )
