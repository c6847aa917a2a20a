"""Folders and lists of images in PASCAL VOC's layout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Collection, Dict, List, Optional

from mxtrain.data.checking.problems import LISTED_TWICE, STRICT, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import as_posix, exists, normalize_name, read_text
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.text_lines import BLANKS, split_lines
from mxtrain.files.text_numbers import parse_number
from mxtrain.vision.images.files import EXTENSIONS

OUTLINE_VALUE = 255
"""Value of the pixels of white outlines in masks. They belong to no object."""
LABELMAP_CELLS = 4
"""Number of cells in a line of labelmap.txt."""
_WORD = re.compile(f"[^{BLANKS}]+")


def images_folder(folder: Path) -> Optional[Path]:
    """Returns the folder of the images beside `Annotations/`: JPEGImages, or images as Label Studio exports them; None
    if there is none."""
    if (folder / "JPEGImages").is_dir():
        return folder / "JPEGImages"
    return folder / "images" if (folder / "images").is_dir() and (folder / "Annotations").is_dir() else None


def find_years(root: Path) -> List[Path]:
    """Returns the folders with images and annotations, sorted by name: the root itself, or folders in it or in its
    folder VOCdevkit."""
    if images_folder(root) is not None:
        return [root]
    inner = root / "VOCdevkit" if (root / "VOCdevkit").is_dir() else root
    return sorted(path for path in inner.iterdir() if images_folder(path) is not None)


def labelmap_names(root: Path) -> List[str]:
    """Returns the classes in labelmap.txt, which CVAT and Datumaro write, without the background; none if there is no
    such file.

    A line is `name:color:parts:actions`; those of other forms, such as colours of masks alone, are not read.
    """
    path = root / "labelmap.txt"
    lines = split_lines(read_text(path)) if exists(path) else []
    rows = [line.split(":") for line in lines if line.strip(BLANKS) and not line.startswith("#")]
    if any(len(row) != LABELMAP_CELLS for row in rows):
        return []
    return [row[0].strip(BLANKS) for row in rows if row[0].strip(BLANKS).lower() != "background"]


def read_names(
    folder: Path,
    name: str,
    setting: str,
    findings: Findings = STRICT,
    without_lists: str = "",
    known: Collection[str] = (),
) -> Dict[str, int]:
    """Reads a list of images. Returns name -> line number. Blank lines, and numbers and paths behind a name, are
    ignored.

    Args:
        folder: folder of the lists.
        name: name of the list without its extension.
        setting: setting that names the list, for messages.
        findings: collects names that occur twice.
        without_lists: sentence that says what to type if there are no lists at all.
        known: names of existing images: their relative paths without extension. A name may contain spaces.

    Raises:
        DataError: the list does not exist, or names no image.
    """
    path = folder / f"{name}.txt"
    if not exists(path):
        existing = sorted(file.stem for file in folder.glob("*.txt")) if folder.is_dir() else []
        listed = f"{did_you_mean(name, existing)} There are: {', '.join(existing)}."
        hint = listed if existing else f" {without_lists}".rstrip()
        raise DataError(f"{setting}: there is no file '{path}'.{hint}")
    lines = enumerate(split_lines(read_text(path, findings)), 1)
    stems = [(_name_in(text, known), number) for number, line in lines if (text := line.strip(BLANKS))]
    line_of: Dict[str, int] = {}
    for stem, number in stems:
        if stem in line_of:
            fact = f"'{path}', line {number} names '{stem}', which line {line_of[stem]} names, too."
            findings.remark(Problem(LISTED_TWICE, DataLocation(str(path), number), fact, "Remove one of the lines."))
        line_of.setdefault(stem, number)
    if not line_of:
        raise DataError(f"'{path}' names no image. Write one name a line, without an ending.")
    return line_of


def _name_in(line: str, known: Collection[str]) -> str:
    """Returns the name in a line of a list: the whole line, the quoted part (CVAT quotes names with spaces), or the
    part before numbers and paths, as in `a -1` and `/JPEGImages/a.jpg /SegmentationClass/a.png`."""
    if line.startswith('"') and '"' in line[1:]:
        return _name_of(line[1:].partition('"')[0], known)
    name = ""
    for word in reversed(list(_WORD.finditer(line))):
        name = _name_of(line[: word.end()], known)
        if name in known or not _may_follow(word.group()):
            break
    return name


def _may_follow(word: str) -> bool:
    """Returns True if a word can follow the name of an image: a number, such as -1, or a path."""
    return parse_number(word) is not None or "/" in word


def _name_of(text: str, known: Collection[str]) -> str:
    """Returns the name of an image for its path in a list. Leading folders and the extension are removed as far as this
    gives a known name."""
    path = normalize_name(as_posix(text)).lstrip("/")
    stem, dot, ending = path.rpartition(".")
    paths = [path, stem] if dot + ending.lower() in EXTENSIONS else [path]
    for candidate in paths:
        parts = candidate.split("/")
        below = ("/".join(parts[begin:]) for begin in range(len(parts)))
        name = next((name for name in below if name in known), None)
        if name is not None:
            return name
    return Path(path).stem if "/" in path else path
