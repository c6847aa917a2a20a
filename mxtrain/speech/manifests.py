"""Datasets of recordings that manifests list: one file or several for each split."""

from __future__ import annotations

from functools import partial
from typing import Callable, ClassVar, List, Literal, Optional, Tuple, TypeVar, Union

from mxtrain.data.checking.problems import Findings
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.speech import aligned_dataset, audio
from mxtrain.speech.aligned_lines import read_aligned
from mxtrain.speech.utterances import read_manifest
from mxtrain.types import PathText, Spec

Files = Union[PathText, List[PathText]]
"""A manifest, or several."""
Line = TypeVar("Line")


class ManifestFiles(Spec):
    """Manifests of the splits."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    train: Files
    """Manifest of training utterances, or a list of them; recordings are named relative to it."""
    val: Optional[Files] = None
    """Manifest or manifests of validation utterances; null = val_fraction of the training utterances."""
    test: Optional[Files] = None
    """Manifest or manifests of test utterances; null = test_fraction of the training utterances."""

    def read_parts(
        self, read: Callable[[str], List[Line]]
    ) -> Tuple[str, List[Line], Optional[List[Line]], Optional[List[Line]]]:
        """Returns the name of the dataset, and its utterances for training, validation and test; None if there is no
        manifest.

        Args:
            read: reads one manifest.
        """
        trained = _read(read, self.train)
        held_out, tested = (None if files is None else _read(read, files) for files in (self.val, self.test))
        return ", ".join(_each(self.train)), trained, held_out, tested


class SpeechManifest(ManifestFiles, audio.AudioDataset):
    """Utterances of lines of JSON as NeMo's and Baidu's Deep Speech have them, or of Mozilla's CSV, which say by their
    content what they are."""

    train: Files = "data/speech/train.jsonl"

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

    def utterances(self, findings: Findings) -> audio.Parts:
        """See `AudioDataset.utterances`."""
        return self.read_parts(partial(read_manifest, findings=findings))


class AlignedManifest(ManifestFiles, aligned_dataset.AlignedDataset):
    """Utterances with durations of their characters or phonemes, as lines of JSON like NeMo's: `audio_filepath`, `text`
    or `phonemes`, and `durations_frames` or `durations_s`."""

    train: Files = "data/synthesis/train.jsonl"

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

    def utterances(self, findings: Findings) -> aligned_dataset.Parts:
        """See `AlignedDataset.utterances`."""
        return self.read_parts(partial(read_aligned, findings=findings))


def _read(read: Callable[[str], List[Line]], files: Files) -> List[Line]:
    return [line for path in _each(files) for line in read(path)]


def _each(files: Files) -> List[str]:
    return [files] if isinstance(files, str) else files
