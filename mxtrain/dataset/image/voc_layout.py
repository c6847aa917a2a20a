"""PASCAL VOC's folders, and its lists of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

from mxtrain.dataset.checking.problems import LISTED_TWICE, STRICT, DataPlace, Findings, Problem
from mxtrain.dataset.loading.regular_files import exists, read_text
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.text_lines import split_lines, split_words


def find_years(root: Path) -> List[Path]:
    """The folders that hold JPEGImages: this one, or those in it or in VOCdevkit in it, sorted by name."""
    if (root / "JPEGImages").is_dir():
        return [root]
    inner = root / "VOCdevkit" if (root / "VOCdevkit").is_dir() else root
    return sorted(path for path in inner.iterdir() if (path / "JPEGImages").is_dir())


def read_names(
    folder: Path, name: str, setting: str, findings: Findings = STRICT, without_lists: str = ""
) -> Dict[str, int]:  # fmt: skip
    """The line of each name in a list of pictures. Blank lines and what follows a name don't count.

    Args:
        folder: of the lists.
        name: of the list, without its ending.
        setting: that names it, for messages.
        findings: gets names that come twice.
        without_lists: what to type where there are no lists at all.

    Raises:
        DataError: there is no such file, or it names none.
    """
    path = folder / f"{name}.txt"
    if not exists(path):
        there = sorted(file.stem for file in folder.glob("*.txt")) if folder.is_dir() else []
        listed = f"{did_you_mean(name, there)} There are: {', '.join(there)}."
        hint = listed if there else f" {without_lists}".rstrip()
        raise DataError(f"{setting}: there is no file '{path}'.{hint}")
    # Some lists name the paths of picture and mask instead.
    lines = enumerate(split_lines(read_text(path, findings)), 1)
    words = [(row[0], number) for number, line in lines if (row := split_words(line))]
    line_of: Dict[str, int] = {}
    for word, number in words:
        stem = Path(word).stem if "/" in word else word
        if stem in line_of:
            fact = f"'{path}', line {number} names '{stem}', which line {line_of[stem]} names, too."
            findings.remark(Problem(LISTED_TWICE, DataPlace(str(path), number), fact, "Remove one of the lines."))
        line_of.setdefault(stem, number)
    if not line_of:
        raise DataError(f"'{path}' names no picture. Write one name a line, without an ending.")
    return line_of
