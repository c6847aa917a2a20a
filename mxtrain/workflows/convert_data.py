"""`data convert`: writes annotated images in another format, and compares what was written with the source."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Literal, Mapping, Optional, Sequence, Tuple

from mxtrain.data.conversion import ConversionRequest, Convertible, converter_of
from mxtrain.data.loading.described_paths import local_name
from mxtrain.data.recognition import FileTree, Recognised, best_first, recognise_all, unquoted
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import ConfigError, DataError, did_you_mean, path_override
from mxtrain.files.object_store.address import is_address
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.types import Spec

COMMAND = "python -m mxtrain"
Open = Callable[[List[str]], Tuple[str, BaseDataset]]
"""Function that returns the name and the dataset of some overrides."""
TARGETS = ("coco", "voc", "yolo", "records", "image_folder")
DROPS = ("masks", "key_points", "crowds", "difficult", "duplicates", "unread", "class_order")


class ConvertDataSettings(Spec):
    """Settings of `data convert`, besides overrides of the dataset."""

    to: Optional[Literal["coco", "voc", "yolo", "records", "image_folder"]] = None
    """Format to write."""
    images: Literal["copy", "link"] = "copy"
    """Image files: copied, or linked by their absolute paths. They are never encoded again."""
    drop: str = ""
    """Content that may be left out if the format cannot hold it, commas between: masks, key_points, crowds (left out
    with their boxes), difficult (the mark), duplicates, unread (annotations that are not read), class_order."""


@dataclass(frozen=True)
class DataConversion:
    """Result of `convert_data`.

    Attributes:
        source: the folder or file that was read.
        read_as: option that read it, e.g. "dataset=cvat".
        target: the folder that was written.
        to: the format.
        num_images: number of images of each split.
        num_objects: number of objects.
        class_names: names of the classes.
        largest_difference: largest difference of a coordinate in pixels between the source and what was written, read
            again.
        dropped: what was left out: key as in `drop` -> number.
        notes: remarks.
        duration_s: seconds it took.
        overrides: overrides with which mxtrain trains on the result.
    """

    source: str
    read_as: str
    target: str
    to: str
    num_images: Mapping[str, int]
    num_objects: int
    class_names: Sequence[str]
    largest_difference: float
    dropped: Mapping[str, int]
    notes: Sequence[str]
    duration_s: float
    overrides: Sequence[str]

    @property
    def command(self) -> str:
        """Returns the command that trains on the result."""
        return " ".join([COMMAND, *self.overrides])

    def __str__(self) -> str:
        count = sum(self.num_images.values())
        splits = ", ".join(f"{split} {number:,}" for split, number in self.num_images.items())
        objects = f", {self.num_objects:,} objects" if self.num_objects else ""
        rate = f"{count / max(self.duration_s, 1e-3):,.0f} images/s"
        lines = [
            f"'{self.target}': {count:,} images ({splits}){objects}, {len(self.class_names):,} classes, from "
            f"{self.read_as} to {self.to} in {format_seconds(self.duration_s)} ({rate})"
        ]
        facts = "classes and image files"
        if self.num_objects:
            facts = f"classes, objects and image files; coordinates within {self.largest_difference:.2g} pixels"
        lines.append(f"  read again and compared, all are the same: {facts}")
        lines += [f"  left out, as drop says: {number:,} {kind}" for kind, number in self.dropped.items()]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join([*lines, f"  {self.command}"])

    __repr__ = __str__


def convert_data_of(
    source: str,
    target: str,
    settings: ConvertDataSettings,
    overrides: Sequence[str],
    classes: Mapping[str, type],
    open_dataset: Open,
    progress: WorkProgress = SILENT,
) -> DataConversion:
    """Converts a dataset.

    Args:
        source: folder or file.
        target: folder that is written; it may not exist.
        settings: the format, and what may be left out.
        overrides: the dataset that reads the source, and its settings; without `dataset=`, it is recognised.
        classes: class of each option of conf/dataset.
        open_dataset: composes a dataset.
        progress: receives the progress.

    Raises:
        ConfigError: a setting is wrong, or the target exists.
        DataError: the source cannot be read, or the format cannot hold what is in it.
    """
    began_s = time.monotonic()
    _refuse_other_groups(overrides)
    if settings.to is None:
        raise ConfigError(f"data convert: which format is to be written? Type to=FORMAT: {', '.join(TARGETS)}.")
    if is_address(target):
        raise ConfigError(f"'{target}': the target is a local folder. Copy it to the store afterwards.")
    if is_address(source) and settings.images == "link":
        raise ConfigError(f"images=link: the images of '{source}' have no local files. Leave images=link out.")
    drop = dropped_kinds(settings.drop)
    _require_outside(Path(source), Path(target))
    words = choose_dataset(source, overrides, classes)
    name, dataset = open_dataset(words)
    if not isinstance(dataset, Convertible):
        raise DataError(f"{name} cannot be converted: only images with boxes, outlines, key points or classes are.")
    description = {
        "source": source if is_address(source) else os.path.abspath(source),
        "dataset": words,
        **settings.model_dump(),
    }
    request = ConversionRequest(name, Path(target), settings.to, settings.images == "link", drop, description)
    with progress:
        found = converter_of(dataset)(dataset, request, progress)
    reader = Recognised("", {"root": target, **found.settings}, found.task).overrides(found.option)
    duration_s = time.monotonic() - began_s
    return DataConversion(
        source,
        name,
        target,
        settings.to,
        found.num_images,
        found.num_objects,
        found.class_names,
        found.largest_difference,
        found.dropped,
        found.notes,
        duration_s,
        reader,
    )


def _refuse_other_groups(overrides: Sequence[str]) -> None:
    """Checks that overrides are of the dataset.

    Raises:
        ConfigError: one is not.
    """
    for word in overrides:
        if not word.startswith(("dataset=", "dataset.", "+dataset.")):
            raise ConfigError(
                f"data convert: '{word}' is no setting of the dataset. `data convert FROM TO` takes to=FORMAT, "
                "images=, drop=, and dataset=NAME with its settings."
            )


def _require_outside(source: Path, target: Path) -> None:
    """Checks that the target is not in the source, where it would be read as a part of it.

    Raises:
        ConfigError: it is.
    """
    inside = source if source.is_dir() else source.parent
    if target.resolve().is_relative_to(inside.resolve()) and source.is_dir():
        raise ConfigError(f"'{target}' is in '{source}', and would be read as a part of it. Name a folder beside it.")


def dropped_kinds(text: str) -> frozenset[str]:
    """Returns the kinds in the setting `drop`.

    Raises:
        ConfigError: there is no such kind.
    """
    kinds = [kind.strip() for kind in text.strip("[]").split(",") if kind.strip()]
    for kind in kinds:
        if kind not in DROPS:
            raise ConfigError(
                f"drop={kind}: there is no such content.{did_you_mean(kind, DROPS)} It can be: {', '.join(DROPS)}."
            )
    return frozenset(kinds)


def choose_dataset(source: str, overrides: Sequence[str], classes: Mapping[str, type]) -> List[str]:
    """Returns the overrides of the dataset that reads a folder or file.

    Args:
        source: the folder or file.
        overrides: overrides of the user.
        classes: class of each option of conf/dataset.

    Raises:
        DataError: nothing is recognised, or several formats are.
    """
    chosen = next((word.partition("=")[2] for word in overrides if word.startswith("dataset=")), None)
    files = FileTree(local_name(source))
    guesses = recognise_all(classes, files)
    if chosen is not None:
        guess: Optional[Recognised] = guesses.get(chosen)
        option = chosen
    else:
        option, guess = _only_guess(source, guesses)
    typed = {word.partition("=")[0].lstrip("+") for word in overrides}
    if guess is not None:
        asked = [word for word in guess.asks if word.partition("=")[0] not in typed]
        if asked:
            raise DataError(f"'{source}': {guess.form}. Type also {' '.join(asked)}. {guess.remark}".rstrip())
    found = [path_override("dataset.root", source)] if guess is None else guess.overrides(option)
    words = [word for word in unquoted(found) if word.startswith("dataset.") and word.partition("=")[0] not in typed]
    return [f"dataset={option}", *words, *(word for word in overrides if not word.startswith("dataset="))]


def _only_guess(source: str, guesses: Mapping[str, Recognised]) -> Tuple[str, Recognised]:
    """Returns the option and the guess of highest certainty.

    Raises:
        DataError: there is none, or there are several.
    """
    ordered = [pair for pair in best_first(guesses) if _is_convertible(pair[1])]
    if not ordered:
        raise DataError(
            f"'{source}': no images with boxes, outlines, key points or classes are recognised. Type dataset=NAME for "
            "the dataset that reads them; docs/data/which-dataset-reads-my-files.md lists all."
        )
    best = [pair for pair in ordered if pair[1].certainty == ordered[0][1].certainty]
    families = {option.replace("_key_points", "") for option, _ in best}
    if len(families) > 1:
        forms = " or ".join(f"dataset={option} ({guess.form})" for option, guess in best)
        raise DataError(f"'{source}' can be {forms}. Type one of them.")
    return best[0]


def _is_convertible(guess: Recognised) -> bool:
    return guess.task in ("detection", "instance_segmentation", "pose_estimation", "classification")
