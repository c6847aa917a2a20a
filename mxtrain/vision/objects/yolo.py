"""Datasets of YOLO: images, and a text file with the objects of each."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple

from mxtrain.data.checking.problems import MISSING_COUNTERPART, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import FileId, exists, list_first, read_text, walk
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.errors import DataError, did_you_mean
from mxtrain.types import PathText
from mxtrain.vision.detection.box_faults import refuse_all
from mxtrain.vision.detection.boxed_classes import ClassNames
from mxtrain.vision.objects.dataset import ObjectBoxes, ObjectFormat, ObjectKeyPoints
from mxtrain.vision.objects.objects import AnnotatedImage, AnnotatedObject, AnnotationSet, PointNames, pairs_of
from mxtrain.vision.objects.yolo_files import OPTION, YoloData, label_of, list_split, read_data
from mxtrain.vision.objects.yolo_rows import NUM_BOX, NUM_OBB, RowLayout, column_counts, read_rows
from mxtrain.vision.pose.key_points import PERSON_NAMES, left_right_pairs

log = logging.getLogger(__name__)

_OBB = (
    "If they are oriented boxes, convert them to boxes: no network of mxtrain predicts oriented ones. If they are "
    "polygons of four corners, type dataset.rows=polygons."
)


class YoloFormat(ObjectFormat):
    """Label files of YOLO: boxes, polygons, or boxes with key points.

    The label file of `images/a.jpg` is `labels/a.txt`, with `images` the last such folder of the path; without one it
    is beside the image. An image without a label file, or with an empty one, is background.
    """

    remedy_if_shared: ClassVar[str] = (
        "Move it out of one of them, or type dataset.val=null to hold out dataset.val_fraction of the training images."
    )

    root: PathText = "data/yolo"
    """Folder of the data, or its data.yaml."""
    data: str = "auto"
    """Description of the data in `root`; auto = data.yaml or the only .yaml with names, or obj.data of Darknet, else
    the folders."""
    val: Optional[str] = "auto"
    """Images of the validation split: a folder or a list of files in `root`; auto = as the description says; null =
    `val_fraction` of the training images."""
    test: Optional[str] = "auto"
    """Likewise for the test split; null = none."""
    classes: ClassNames = []
    """Names of the classes to train on; empty = all. Names of all classes if neither a description nor classes.txt
    has them."""
    rows: Literal["auto", "polygons"] = "auto"
    """Meaning of rows of a class and eight numbers, if there are no others: auto = oriented boxes, which are refused;
    polygons = polygons of four corners."""

    def read(self, findings: Findings) -> AnnotationSet:
        """Reads the label files; see `ObjectFormat.read`."""
        data = read_data(Path(self.root), self.data)
        texts = {
            split: [(path, file_id, _text_of(path, findings)) for path, file_id in list_split(entries, findings)]
            for split, entries in self._splits(data).items()
        }
        _refuse_unlabelled(texts, data)
        names = list(data.names) or list(self.classes)
        if not names:
            raise DataError(
                f"{OPTION}: how are the classes called? Write a file '{Path(self.root) / 'classes.txt'}' with one name "
                "a line in the order of their numbers, or type e.g. 'dataset.classes=[cat,dog]'."
            )
        layout = self._layout(data, len(names), [text for *_, text in texts["train"] if text is not None])
        index_of = self._index_of(names, data)
        splits = {}
        problems = _RowProblems([], findings)
        for split, entries in texts.items():
            images = [_image(*entry, layout, index_of, problems) for entry in entries]
            _say_background(split, entries, images)
            splits[split] = images
        refuse_all(findings, problems.refused, "rows")
        for folder in {Path(label_of(path)).parent for path, *_ in texts["train"]}:
            _warn_of_stray_labels(
                folder, {label_of(path) for entries in texts.values() for path, *_ in entries}, findings
            )
        chosen = sorted(index_of, key=index_of.__getitem__)
        return AnnotationSet([names[number] for number in chosen], splits, True, _point_names(data, layout))

    def _splits(self, data: YoloData) -> Dict[str, Sequence[Path]]:
        """Returns the files or folders of each split.

        Raises:
            DataError: a setting names none.
        """
        splits: Dict[str, Sequence[Path]] = dict(data.splits)
        for split, setting in (("val", self.val), ("test", self.test)):
            if setting is None:
                splits.pop(split, None)
            elif setting != "auto":
                path = Path(self.root) / setting
                if not exists(path):
                    raise DataError(f"dataset.{split}={setting}: there is no '{path}'.")
                splits[split] = [path]
        return splits

    def _layout(self, data: YoloData, num_classes: int, texts: Sequence[str]) -> RowLayout:
        """Returns the layout of the rows of the training labels.

        Raises:
            DataError: they are oriented boxes, or lack the key points that the task needs.
        """
        counts = Counter(count for text in texts for count in column_counts(text))
        if isinstance(self, ObjectKeyPoints):
            if data.points is None:
                raise DataError(f"{OPTION}: '{data.source}' has no kpt_shape, e.g. kpt_shape: [17, 3].")
            return RowLayout(num_classes, "key_points", *data.points)
        # Boxes alone are accepted. Other rows could be misread as polygons.
        if data.points is not None and set(counts) != {NUM_BOX}:
            return RowLayout(num_classes, "key_points", *data.points)
        if counts and set(counts) == {NUM_OBB} and self.rows == "auto":
            raise DataError(f"{OPTION}: each row of '{data.source}' has a class and eight numbers. {_OBB}")
        has_polygons = any(count > 6 for count in counts)
        return RowLayout(num_classes, "polygons" if has_polygons and self.reads_outlines else "boxes")

    def _index_of(self, names: Sequence[str], data: YoloData) -> Dict[int, int]:
        """Returns number in the files -> index of the class, for the classes to learn.

        Raises:
            DataError: a configured class does not exist.
        """
        for name in self.classes:
            if name not in names:
                raise DataError(
                    f"dataset.classes: '{data.source}' has no class '{name}'.{did_you_mean(name, names)} It has: "
                    f"{list_first(names)}."
                )
        return {list(names).index(name): index for index, name in enumerate(self.classes or names)}


class _RowProblems(NamedTuple):
    """Problems of rows: those that prevent training, and the collector of others."""

    refused: List[Problem]
    findings: Findings


def _image(
    path: str,
    file_id: FileId,
    text: Optional[str],
    layout: RowLayout,
    index_of: Dict[int, int],
    problems: _RowProblems,
) -> AnnotatedImage:
    """Returns an image with the objects of its label file.

    Args:
        path: image file.
        file_id: its identity.
        text: content of its label file; None: there is none.
        layout: layout of the rows.
        index_of: number in the file -> index of the class; other classes are left out.
        problems: receives the problems of rows.
    """
    label = label_of(path)
    objects: Sequence[AnnotatedObject] = ()
    if text:
        objects, refused, remarks = read_rows(text, label, layout)
        problems.refused.extend(refused)
        for remark in remarks:
            problems.findings.remark(remark)
    kept = [each._replace(class_index=index_of[each.class_index]) for each in objects if each.class_index in index_of]
    return AnnotatedImage(path, file_id, label, objects=kept, are_lines=True)


class Yolo(YoloFormat, ObjectBoxes):  # type: ignore[misc]  # the format comes first
    """Images with YOLO's label files."""

    option: ClassVar[str] = OPTION

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        settings = {"root": files.typed()}
        described = [
            name
            for name in files.find(".yaml", ".yml", ".data")
            if name.count("/") <= 1 and ("\nnames:" in f"\n{files.text(name)}" or name.endswith("obj.data"))
        ]
        if described and "train" in files.text(described[0]):
            settings["root"] = (
                files.typed() if "/" not in described[0] else files.typed(described[0].rpartition("/")[0])
            )
        labels = [name for name in files.find(".txt") if _are_rows(files.lines(name, 20))]
        if not labels or not files.images:
            return None
        counts = Counter(len(line.split()) for name in labels[:200] for line in files.lines(name, 20)[:19])
        task, form = "detection", "YOLO's label files with boxes"
        if described and "kpt_shape" in files.text(described[0]):
            task, form = "pose_estimation", "YOLO's label files with key points"
        elif counts and min(counts) > 6:
            task, form = "instance_segmentation", "YOLO's label files with polygons"
        has_names = described or files.named("classes.txt")
        asks = () if has_names else ("dataset.classes=[NAME,...]",)
        certainty = Certainty.SURE if has_names else Certainty.LIKELY
        return Recognised(form, settings, task, certainty, asks, counts={"images": len(files.images)} if asks else {})


def _are_rows(lines: Sequence[str]) -> bool:
    """Returns True if the first lines of a text are rows of a class and numbers."""
    rows = [line.split() for line in lines]
    try:
        return bool(rows) and all(len(row) >= 5 and int(row[0]) >= 0 and float(row[1]) <= 1.1 for row in rows)
    except ValueError:
        return False


def _text_of(path: str, findings: Findings) -> Optional[str]:
    """Returns the content of the label file of an image; None if there is none."""
    label = label_of(path)
    return read_text(label, findings) if exists(label) else None


def _refuse_unlabelled(texts: Dict[str, List[Tuple[str, Any, Optional[str]]]], data: YoloData) -> None:
    """Rejects a split in which no image has a label file; a test split of such images is left out.

    Raises:
        DataError: it is the training or the validation split.
    """
    for split, entries in list(texts.items()):
        if any(text is not None for *_, text in entries):
            continue
        if split == "test":
            log.info("%s: the %d images of the test split have no labels, so it is left out", OPTION, len(entries))
            del texts[split]
            continue
        if not entries:
            raise DataError(f"{OPTION}: the split {split} of '{data.source}' has no image.")
        path = entries[0][0]
        raise DataError(
            f"{OPTION}: none of the {len(entries):,} images of the split {split} has a label file. That of '{path}' "
            f"would be '{label_of(path)}': images are in a folder images/ and labels in labels/, or beside them."
        )


def _say_background(split: str, entries: Sequence[Any], images: Sequence[AnnotatedImage]) -> None:
    """Logs the number of images without objects."""
    missing = sum(text is None for *_, text in entries)
    empty = sum(not image.objects for image in images) - missing
    if missing or empty:
        log.info(
            "%s: of %d images of the split %s, %d have no label file and %d no objects in theirs: background",
            OPTION,
            len(images),
            split,
            missing,
            empty,
        )


def _warn_of_stray_labels(folder: Path, known: Any, findings: Findings) -> None:
    """Warns of label files without an image, as of images that were deleted or have unsupported extensions."""
    stray = [str(path) for path, _ in walk(folder, (".txt",)) if str(path) not in known] if folder.is_dir() else []
    stray = [path for path in stray if column_counts(read_text(path)) and not path.endswith("classes.txt")]
    if stray:
        fact = f"'{stray[0]}' is the label file of no image"
        more = f" ({len(stray):,} such files)" if stray[1:] else ""
        problem = Problem(MISSING_COUNTERPART, DataLocation(stray[0]), f"{fact}{more}.", "Add the image, or remove it.")
        findings.warn(problem)


def _point_names(data: YoloData, layout: RowLayout) -> Optional[PointNames]:
    """Returns the names of the key points. Those of COCO's persons are known by their number and their pairs."""
    if layout.kind != "key_points":
        return None
    flips = pairs_of(data.flips) if data.flips is not None else None
    if data.flips is not None and flips is None:
        raise DataError(
            f"'{data.source}': flip_idx {list(data.flips)} is no order in which key points change places in pairs."
        )
    names: Sequence[str] = data.point_names or [f"point {number}" for number in range(layout.num_points)]
    if not data.point_names and layout.num_points == len(PERSON_NAMES) and flips == left_right_pairs(PERSON_NAMES):
        names = PERSON_NAMES
    return PointNames(names, flip_pairs=flips)
