"""`data convert`: writes annotated images in another format, and compares what was written with the source."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type

from mxtrain.data.recognition import FileTree, Recognised, best_first, recognise_all, unquoted
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import ConfigError, DataError, did_you_mean, path_override
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.vision.conversion.form import Form
    from mxtrain.vision.conversion.job import ConversionJob

COMMAND = "python -m mxtrain"
Open = Callable[[List[str]], Tuple[str, BaseDataset]]
"""Function that returns the name and the dataset of some overrides."""
TARGETS = ("coco", "voc", "yolo", "records", "image_folder")
MIN_MOVE = 0.01
"""Pixels from which moved edges are told."""
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
    from mxtrain.vision.conversion.comparison import compare
    from mxtrain.vision.conversion.unfinished import UnfinishedFolder, require_free

    began_s = time.monotonic()
    if settings.to is None:
        raise ConfigError(f"data convert: which format is to be written? Type to=FORMAT: {', '.join(TARGETS)}.")
    folder = Path(target)
    require_free(folder)
    _require_outside(Path(source), folder)
    words = choose_dataset(source, overrides, classes)
    name, dataset = open_dataset(words)
    with progress:
        form = _prepare(name, dataset, settings, progress)
        form.check()
        dropped = form.job.refuse_losses(f"to={settings.to}")
        description = {
            "source": os.path.abspath(source),
            "dataset": words,
            **settings.model_dump(),
            "digest": form.job.digest,
        }
        with UnfinishedFolder(folder, description) as unfinished:
            form.write(unfinished.path, progress)
            found = compare(form, unfinished.path, progress)
            unfinished.finish()
    settings_of_result = [
        f"dataset.{key}={value if isinstance(value, str) else str(value).lower()}"
        for key, value in form.settings().items()
    ]
    return DataConversion(
        source,
        name,
        target,
        settings.to,
        found.num_images,
        found.num_objects,
        list(form.content.class_names),
        found.largest,
        dropped,
        _notes(form.job),
        time.monotonic() - began_s,
        [f"task={form.task()}", f"dataset={form.option()}", path_override("dataset.root", target), *settings_of_result],
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
        ConfigError: an override is not of the dataset.
    """
    for word in overrides:
        if not word.startswith(("dataset=", "dataset.", "+dataset.")):
            raise ConfigError(
                f"data convert: '{word}' is no setting of the dataset. `data convert FROM TO` takes to=FORMAT, "
                "images=, drop=, and dataset=NAME with its settings."
            )
    chosen = next((word.partition("=")[2] for word in overrides if word.startswith("dataset=")), None)
    files = FileTree(source)
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


def _prepare(name: str, dataset: BaseDataset, settings: ConvertDataSettings, progress: WorkProgress) -> Form:
    """Reads the source, and returns the format that is to be written.

    Raises:
        DataError: the format cannot hold such a dataset.
    """
    from mxtrain.vision.conversion.content import LeftOut
    from mxtrain.vision.conversion.job import ConversionJob
    from mxtrain.vision.conversion.reading import Wanted, read_content

    drop, left_out = dropped_kinds(settings.drop), LeftOut()
    progress.begin("reading annotations", 0)
    content = read_content(dataset, name, left_out, Wanted("masks" not in drop, "key_points" not in drop))
    assert settings.to is not None
    kind = forms()[content.has_objects].get(settings.to)
    if kind is None:
        has = "objects with boxes" if content.has_objects else "one class for each image"
        allowed = ", ".join(forms()[content.has_objects])
        raise DataError(f"to={settings.to}: {name} has {has}, which can be written to: {allowed}.")
    job = ConversionJob(content, kind.holds, drop, left_out)
    job.survey(progress)
    return kind(job, settings.images)


def forms() -> Dict[bool, Dict[str, Type[Form]]]:
    """Returns the formats by their names, for objects (True) and for classes of images (False)."""
    from mxtrain.vision.conversion.class_folder_form import ClassFolderForm
    from mxtrain.vision.conversion.coco_form import CocoForm
    from mxtrain.vision.conversion.record_form import BoxRecordForm, ClassRecordForm
    from mxtrain.vision.conversion.voc_form import VocForm
    from mxtrain.vision.conversion.yolo_form import YoloForm

    kinds: Sequence[Type[Form]] = (CocoForm, VocForm, YoloForm, BoxRecordForm, ClassFolderForm, ClassRecordForm)
    return {flag: {kind.name: kind for kind in kinds if kind.holds.objects == flag} for flag in (True, False)}


def _notes(job: ConversionJob) -> List[str]:
    notes = list(job.notes)
    if job.counts["sizes"]:
        notes.append(
            f"{job.counts['sizes']:,} images have another size than their annotation says: that of the file is used"
        )
    if job.largest_move > MIN_MOVE:
        notes.append(
            "boxes of polygons are the smallest ones around them, which differ from those of the source by up to "
            f"{job.largest_move:.2g} pixels"
        )
    return notes
