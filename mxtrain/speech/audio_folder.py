"""Classification dataset of recordings in one folder per class, such as Speech Commands."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Dict, List, Literal, Optional, Sequence, Set, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    MISSING_COUNTERPART,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.loading.class_folders import (
    folders_in,
    match_classes,
    refuse_empty_class,
    refuse_linked_classes,
    refuse_undecodable,
    require_root,
    require_two_classes,
)
from mxtrain.data.loading.dataset_files import as_posix, exists, read_text, refuse_shared, walk
from mxtrain.data.loading.randomness import uniform
from mxtrain.data.loading.split_folders import WORDS, find_splits
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.text_lines import BLANKS, split_lines
from mxtrain.speech.clip_dataset import ClipDataset, ListedClips
from mxtrain.speech.clips import Clip
from mxtrain.speech.draws import SpeechDraw
from mxtrain.speech.recording import ENDINGS, RecordingError, read_recording
from mxtrain.speech.utterances import Utterance
from mxtrain.types import Fraction, Names, PathText

NOISE = "_background_noise_"
"""Folder of recordings of noise, which is no class."""
LISTS = {"val": "validation_list.txt", "test": "testing_list.txt"}
"""Split -> file with the names of its recordings, CLASS/FILE; all others are trained on."""
UNKNOWN, SILENCE = "_unknown_", "_silence_"
"""Names of the classes of other words and of noise alone."""
_SPEAKER = "_nohash_"
"""Separates the speaker from the number of a recording in names of Speech Commands."""
_NOISE_SHARES = {"train": (0.0, 0.8), "val": (0.8, 0.9), "test": (0.9, 1.0)}
"""Part of each recording of noise from which samples of silence are cut."""

log = logging.getLogger(__name__)


class AudioFolder(ClipDataset):
    """Recordings in `root/CLASS/` with lists of splits (Speech Commands), or without; or in `root/train/CLASS/` with
    `root/val/` and `root/test/` beside.

    Source: Warden, "Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition" (2018).
    """

    root: PathText = "data/audio_folder"
    """Folder of the recordings; by default in the folder that MXTRAIN_DATA names, else in data/."""
    classes: Union[Literal["auto"], Names] = "auto"
    """Classes to tell apart, e.g. [yes,no,up,down]; auto = all folders."""
    others: Literal["leave_out", "unknown"] = "leave_out"
    """Recordings of folders that are not in classes; unknown = they are a class, _unknown_."""
    silence: Fraction = 0.0
    """Number of samples of a class _silence_, as a share of the other samples; they are cut from recordings in
    _background_noise_, of which training, validation and test use different parts."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        above = {name.rpartition("/")[0] for name in files.find(*ENDINGS)}
        folders = {each.rpartition("/")[2] for each in above} - {NOISE, ""}
        words = {word for each in WORDS.values() for word in each}
        if len(folders) < 2 or {each.lower() for each in folders} <= {*words, "wavs", "clips", "wav"}:
            return None
        is_commands = any(files.has(name) for name in LISTS.values())
        form = "Speech Commands" if is_commands else "recordings in a folder for each class"
        certainty = Certainty.SURE if is_commands else Certainty.MAY_BE
        return Recognised(form, {"root": files.typed()}, "classification", certainty)

    def list_clips(self, findings: Findings) -> ListedClips:
        """See `ClipDataset.list_clips`."""
        root = Path(self.root)
        require_root(root, "dataset=audio_folder", "recordings")
        folders = find_splits(root, "dataset=audio_folder") or {"train": root}
        names = _class_folders(folders["train"])
        remedy = "Sort the recordings into CLASS folders, or name another folder with dataset.root=FOLDER."
        require_two_classes(folders["train"], names, "dataset=audio_folder", remedy)
        refuse_undecodable(folders["train"], names, findings)
        chosen = self._chosen(names)
        found = {split: self._files(folder, names, findings) for split, folder in folders.items()}
        for files in found.values():
            refuse_linked_classes(files, "a recording", findings)
        refuse_shared({split: [path for _, path in files] for split, files in found.items()}, findings)
        if len(folders) == 1 and folders["train"] == root:
            found = self._divided(root, found["train"], findings)
        class_names = [*chosen, *([UNKNOWN] if set(names) - set(chosen) and self.others == "unknown" else [])]
        number = {name: index for index, name in enumerate(class_names)}
        other = number.get(UNKNOWN)
        clips: Dict[str, List[Clip]] = {}
        for split, files in found.items():
            labels = [(path, number.get(name, other)) for name, path in files]
            clips[split] = [
                Clip(Utterance(str(path), "", DataLocation(str(path))), label)
                for path, label in labels
                if label is not None
            ]
        noise = [
            Utterance(str(path), "", DataLocation(str(path)))
            for path, _ in (walk(root / NOISE, ENDINGS, findings=findings) if (root / NOISE).is_dir() else [])
        ]
        if self.silence:
            class_names.append(SILENCE)
            self._add_silence(clips, noise, len(class_names) - 1)
        return ListedClips(
            class_names, clips["train"], clips.get("val"), clips.get("test"), noise, f"dataset=audio_folder in '{root}'"
        )

    def _chosen(self, names: Sequence[str]) -> List[str]:
        """Returns the classes.

        Raises:
            DataError: there is no folder of one.
        """
        if self.classes == "auto":
            return list(names)
        unknown = next((name for name in self.classes if name not in names), None)
        if unknown is not None:
            raise DataError(
                f"dataset.classes: there is no folder '{unknown}'.{did_you_mean(unknown, names)} There are: "
                f"{', '.join(names[:40])}."
            )
        return list(dict.fromkeys(self.classes))

    def _files(self, folder: Path, names: Sequence[str], findings: Findings) -> List[Tuple[str, Path]]:
        """Returns (class, recording) of all recordings in the folders of classes."""
        files = []
        folder_names = match_classes(folder, _class_folders(folder), names, "recordings", findings)
        for name, folder_name in zip(names, folder_names):
            below = folder / folder_name
            found = walk(below, ENDINGS, findings=findings) if below.is_dir() else []
            if not found:
                refuse_empty_class(below, "recordings", ENDINGS, findings)
            files += [(name, path) for path, _ in found]
        return files

    def _divided(
        self, root: Path, files: Sequence[Tuple[str, Path]], findings: Findings
    ) -> Dict[str, List[Tuple[str, Path]]]:
        """Returns the recordings of each split: by lists, and by speakers for splits that have no list if names tell
        speakers; else all for training, of which samples are held out."""
        split_of = _read_lists(root, {str(path) for _, path in files}, findings)
        listed = set(split_of.values())
        val_fraction = 0.0 if "val" in listed else self.val_fraction
        test_fraction = 0.0 if "test" in listed else self.test_fraction
        has_speakers = self.division.fold is None and all(_SPEAKER in path.name for _, path in files)
        if has_speakers and (val_fraction or test_fraction):
            rest = [path for _, path in files if str(path) not in split_of]
            for path in rest:
                # By both fractions also if one list exists: the list follows from the same hash, so the range that is
                # left for the other split does not begin at 0.
                split = split_of_speaker(path.name.partition(_SPEAKER)[0], self.val_fraction, self.test_fraction)
                if split != "train" and split not in listed:
                    split_of[str(path)] = split
            for split, name, fraction in (("val", "validation", val_fraction), ("test", "test", test_fraction)):
                if fraction and split not in split_of.values():
                    leave_out = "" if split == "val" else " Or type dataset.test_fraction=0."
                    raise DataError(
                        f"dataset=audio_folder: none of the speakers in '{root}' falls into the {name} split by "
                        f"dataset.{split}_fraction={fraction:g}. Type a larger one, or list recordings of some in "
                        f"{LISTS[split]}.{leave_out}"
                    )
            log.info("dataset=audio_folder: recordings of one speaker (SPEAKER%sN) are in one split", _SPEAKER)
        divided: Dict[str, List[Tuple[str, Path]]] = {"train": [], **{split: [] for split in set(split_of.values())}}
        for name, path in files:
            divided[split_of.get(str(path), "train")].append((name, path))
        return divided

    def _add_silence(self, clips: Dict[str, List[Clip]], noise: Sequence[Utterance], label: int) -> None:
        """Adds parts of the recordings of noise to each split.

        Raises:
            DataError: there are no recordings of noise, or they are too short.
        """
        rate = self.features.sample_rate
        lengths: List[Tuple[Utterance, float]] = []
        for utterance in noise:
            try:
                lengths.append((utterance, len(read_recording(utterance.path, rate)) / rate))
            except RecordingError as error:
                raise DataError(f"'{utterance.path}' {error.fact}") from error
        lengths = [(utterance, length) for utterance, length in lengths if 0.1 * length >= self.seconds]
        if not lengths:
            raise DataError(
                f"dataset.silence={self.silence:g} needs recordings of at least {10 * self.seconds:g} s in "
                f"'{Path(self.root) / NOISE}', and there are none. Add some, or type dataset.silence=0."
            )
        for number, (split, (begin, end)) in enumerate(_NOISE_SHARES.items()):
            if split not in clips:
                continue
            count = round(self.silence * len(clips[split]))
            place_N = uniform(self.split_seed, number, np.arange(count), SpeechDraw.CLIP_LOOK)
            for index, place in enumerate(place_N.tolist()):
                utterance, length = lengths[index % len(lengths)]
                begin_s = length * begin + place * (length * (end - begin) - self.seconds)
                part = utterance._replace(begin_s=round(begin_s, 4), duration_s=self.seconds)
                clips[split].append(Clip(part, label))


def _class_folders(folder: Path) -> List[str]:
    return [name for name in folders_in(folder) if name != NOISE]


def _read_lists(root: Path, paths: Set[str], findings: Findings) -> Dict[str, str]:
    """Returns recording -> split of the lists in `root`; empty if there are none.

    Raises:
        DataError: a list is empty: its split would be chosen at random.
    """
    split_of: Dict[str, str] = {}
    location_of: Dict[str, DataLocation] = {}
    for split, name in LISTS.items():
        if not exists(root / name):
            continue
        lines = split_lines(read_text(root / name, findings))
        if not any(line.strip(BLANKS) for line in lines):
            raise DataError(f"'{root / name}' is empty. List recordings in it, CLASS/FILE in each line, or remove it.")
        for number, line in enumerate(lines, start=1):
            if not line.strip(BLANKS):
                continue
            path, location = str(root / as_posix(line.strip(BLANKS))), DataLocation(str(root / name), number)
            if path not in paths:
                fact = f"{location} names '{line.strip(BLANKS)}', and there is no such recording in '{root}'."
                findings.refuse(Problem(MISSING_COUNTERPART, location, fact, "Restore it, or remove the line."))
            elif path in split_of:
                fact = f"{location} names '{line.strip(BLANKS)}', as {location_of[path]} does."
                findings.refuse(Problem(LISTED_TWICE, location, fact, "Remove one."))
            else:
                split_of[path], location_of[path] = split, location
    return split_of


def split_of_speaker(speaker: str, val_fraction: float, test_fraction: float) -> str:
    """Returns the split of a speaker: a hash of the name decides, so that it stays the same if recordings are added.

    Source: `which_set` in the README of Speech Commands, whose lists follow from it with fractions of 0.1.
    """
    largest = 2**27 - 1
    digest = int(
        hashlib.sha1(speaker.encode("utf-8", "surrogateescape")).hexdigest(), 16
    )  # no secret: a published rule
    share = digest % (largest + 1) / largest
    return "val" if share < val_fraction else "test" if share < val_fraction + test_fraction else "train"
