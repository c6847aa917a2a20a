"""Damaged tables with any number of classes in a row, of images, texts and features; records of images with any number
of classes; and tables with a number to predict, of images and texts."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Callable, List, Sequence

from damage import Case, damage_file, kind, piped, read_splits
from PIL import Image

from mxtrain.tables.feature_table import FeatureTable
from mxtrain.text.classification.text import Text
from mxtrain.types.kinds import ClassSet, Number
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.classification.image_table import ImageTable
from mxtrain.vision.images.record_file import RecordFile
from mxtrain.vision.images.record_writer import RecordWriter, pack_record

IMAGES, TEXTS, FEATURES = "table of images", "texts with several classes", "table with several classes"
ALL = (IMAGES, TEXTS, FEATURES)
NUMBERED_IMAGES, NUMBERED_TEXTS = "table of images with numbers", "texts with numbers"
VECTORS, INDICES = "RecordIO with vectors of classes", "RecordIO with lists of classes"
NUMBERED = (NUMBERED_IMAGES, NUMBERED_TEXTS)
FILES = tuple((name, "train.csv") for name in (*ALL, *NUMBERED))

CASES: List[Case] = [
    *(Case(name, "it is in Latin-1", "line 3 is no UTF-8: it holds the byte 0xe9") for name in ALL),
    *(Case(name, "it is in UTF-16", "is in UTF-16, not UTF-8") for name in ALL),
    *(Case(name, "it is a named pipe", "is a named pipe, and only regular files are read") for name in ALL),
    *(Case(name, "it is empty", "train.csv is empty: there are no columns.") for name in ALL),
    *(Case(name, "it has a header alone", "the column 'labels' has no class") for name in ALL),
    *(Case(name, "a row is short", "train.csv, line 5: it has 1 column") for name in ALL),
    *(Case(name, "classes have two delimiters", "cells of the column 'labels' hold '|' and ';'") for name in ALL),
    *(Case(name, "it is in Latin-1", "line 3 is no UTF-8: it holds the byte 0xe9") for name in NUMBERED),
    *(Case(name, "it is in UTF-16", "is in UTF-16, not UTF-8") for name in NUMBERED),
    *(Case(name, "it is a named pipe", "is a named pipe, and only regular files are read") for name in NUMBERED),
    Case(NUMBERED_IMAGES, "it is empty", "train.csv is empty: there are no columns."),
    Case(NUMBERED_TEXTS, "it is empty", "train.csv has no rows."),
    *(Case(name, "a row is short", "train.csv, line 5: it has 1 column") for name in NUMBERED),
    Case(NUMBERED_IMAGES, "it has a header alone", "a table has no usable image"),
    Case(NUMBERED_TEXTS, "it has a header alone", "train.csv has no rows"),
    *(Case(name, "a number is a word", "train.csv, line 5: 'value' is 'many', no number.") for name in NUMBERED),
    *(Case(name, "a number is too large", "line 5: 'value' is 1e+39, and the largest number") for name in NUMBERED),
    *(Case(name, "a number is missing", "train.csv, line 5: 'value' is 'NA', a missing number.") for name in NUMBERED),
    Case(NUMBERED_IMAGES, "an image is missing", "train.csv, line 5 names 'none.png', and there is no file"),
    Case(NUMBERED_IMAGES, "an image is listed twice", "train.csv, line 5 names '"),
    Case(NUMBERED_IMAGES, "an image is cut off", "3.png' cannot be read as an image", 1),
    Case(IMAGES, "an image is missing", "train.csv, line 5 names 'none.png', and there is no file"),
    Case(IMAGES, "an image is listed twice", "train.csv, line 5 names '"),
    Case(IMAGES, "an image is cut off", "3.png' cannot be read as an image", 1),
    *(Case(name, "the .rec file is cut off", "train.rec' is truncated: ") for name in (VECTORS, INDICES)),
    *(Case(name, "a label says it has 2^31 numbers", "Record 2 of ... too few for its") for name in (VECTORS, INDICES)),
    Case(VECTORS, "a number is NaN", "Record 2 of ... has nan in its vector of classes; allowed are 0 and 1."),
    Case(VECTORS, "a number is -1", "Record 2 of ... has -1 in its vector of classes; allowed are 0 and 1."),
    Case(VECTORS, "a number is 0.5", "Record 2 of ... has 0.5 in its vector of classes; allowed are 0 and 1."),
    Case(VECTORS, "a number is 3e9", "Record 2 of ... has 3e+09 in its vector of classes; allowed are 0 and 1."),
    Case(VECTORS, "a label is longer", "Record 2 of ... has 4 numbers; a vector of 3 classes has 3."),
    Case(INDICES, "a number is NaN", "Record 2 of ... has the class index nan; allowed are whole numbers from 0 to 3."),
    Case(INDICES, "a number is -1", "Record 2 of ... has the class index -1; allowed are whole numbers from 0 to 3."),
    Case(INDICES, "a number is 0.5", "Record 2 of ... has the class index 0.5; allowed are whole numbers from 0 to 3."),
    Case(INDICES, "a number is 3e9", "Record 2 of ... has the class index 3e+09; allowed are whole numbers from 0 to"),
]


def write_table(folder: Path, column: str, cells: List[str]) -> None:
    rows = [f"{cell},{('', 'a', 'b', 'a|caf' + chr(233))[number % 4]}\n" for number, cell in enumerate(cells)]
    (folder / "train.csv").write_text(f"{column},labels\n" + "".join(rows[1:]), encoding="utf-8")


@kind(IMAGES)
def _images(folder: Path) -> Callable[[], None]:
    for number in range(16):
        Image.new("RGB", (8, 8), (9 * number, 0, 0)).save(folder / f"{number}.png")
    write_table(folder, "image", [f"{number}.png" for number in range(16)])
    write = (folder / "train.csv").read_text(encoding="utf-8").replace("2.png,b", "2.png,a|caf\u00e9", 1)
    (folder / "train.csv").write_text(write, encoding="utf-8")
    return read_splits(ImageTable(train=str(folder / "train.csv"), image_size=[8, 8]))


@kind(TEXTS)
def _texts(folder: Path) -> Callable[[], None]:
    write_table(folder, "sentence", [f"caf\u00e9 {number}" for number in range(16)])
    return read_splits(Text(train=str(folder / "train.csv"), label="labels").for_run(ClassSet))


@kind(FEATURES)
def _features(folder: Path) -> Callable[[], None]:
    write_table(folder, "town", [f"caf\u00e9{number % 3}" for number in range(16)])
    return read_splits(FeatureTable(train=str(folder / "train.csv"), target="labels").for_run(ClassSet))


@kind(NUMBERED_IMAGES)
def _numbered_images(folder: Path) -> Callable[[], None]:
    for number in range(16):
        Image.new("RGB", (8, 8), (9 * number, 0, 0)).save(folder / f"caf\u00e9{number}.png")
    (folder / "caf\u00e93.png").rename(folder / "3.png")
    names = [f"caf\u00e9{number}.png" if number != 3 else "3.png" for number in range(16)]
    rows = [f"{name},{number}\n" for number, name in enumerate(names)]
    (folder / "train.csv").write_text("image,value\n" + "".join(rows), encoding="utf-8")
    return read_splits(ImageTable(train=str(folder / "train.csv"), image_size=[8, 8]).for_run(Number))


@kind(NUMBERED_TEXTS)
def _numbered_texts(folder: Path) -> Callable[[], None]:
    rows = [f"caf\u00e9 {number},{number}\n" for number in range(16)]
    (folder / "train.csv").write_text("sentence,value\n" + "".join(rows), encoding="utf-8")
    return read_splits(Text(train=str(folder / "train.csv"), label="value").for_run(Number))


SETS = {VECTORS: ([0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 0]), INDICES: ([0, 1], [2, 0, 1], [1, 3], [3])}


def write_sets(folder: Path, labels: Sequence[Sequence[float]]) -> None:
    with RecordWriter(folder / "train.rec") as writer:
        for number, label in enumerate(labels):
            content = io.BytesIO()
            Image.new("RGB", (8, 8), (9 * number, 0, 0)).save(content, "PNG")
            writer.write(pack_record(number, label, content.getvalue()))


def _class_set_records(name: str) -> None:
    def write(folder: Path) -> Callable[[], None]:
        write_sets(folder, SETS[name] * 3)
        return read_splits(ImageRecord(root=str(folder), prefix="", image_size=[8, 8]).for_run(ClassSet))

    kind(name)(write)

    @damage_file((name, "train.rec"), called="the .rec file is cut off")
    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-40])

    @damage_file((name, "train.rec"), called="a label says it has 2^31 numbers")
    def lengthen(path: Path) -> None:
        content = bytearray(path.read_bytes())
        struct.pack_into("<I", content, int(RecordFile(path).offset_N[2]) + 8, 1 << 31)
        path.write_bytes(content)

    def relabel(called: str, label: Sequence[float]) -> None:
        def spoil(path: Path) -> None:
            path.unlink()
            path.with_suffix(".idx").unlink()
            write_sets(path.parent, [*SETS[name][:2], label, *SETS[name] * 2])

        damage_file((name, "train.rec"), called=called)(spoil)

    for text in ("NaN", "-1", "0.5", "3e9"):
        relabel(f"a number is {text}", [*SETS[name][2][:-1], float(text)])
    if name == VECTORS:
        relabel("a label is longer", [0, 0, 0, 0])


for _name in SETS:
    _class_set_records(_name)


@damage_file(*FILES, called="it is in Latin-1")
def _latin1(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].decode().encode("latin-1")
    path.write_bytes(b"".join(lines))


@damage_file(*FILES, called="it is in UTF-16")
def _utf16(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-16")


damage_file(*FILES, called="it is a named pipe")(piped)


@damage_file(*FILES, called="it is empty")
def _empty(path: Path) -> None:
    path.write_bytes(b"")


@damage_file(*FILES, called="it has a header alone")
def _header(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


@damage_file((IMAGES, "3.png"), (NUMBERED_IMAGES, "3.png"), called="an image is cut off")
def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def replace_line(path: Path, line: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = line + b"\n"
    path.write_bytes(b"".join(lines))


damage_file(*FILES, called="a row is short")(lambda path: replace_line(path, b"alone"))
damage_file(*FILES[: len(ALL)], called="classes have two delimiters")(lambda path: replace_line(path, b"one,a;b"))
damage_file((IMAGES, "train.csv"), called="an image is missing")(lambda path: replace_line(path, b"none.png,a"))
damage_file((NUMBERED_IMAGES, "train.csv"), called="an image is missing")(
    lambda path: replace_line(path, b"none.png,1")
)
damage_file((IMAGES, "train.csv"), called="an image is listed twice")(lambda path: replace_line(path, b"2.png,a"))
damage_file((NUMBERED_IMAGES, "train.csv"), called="an image is listed twice")(
    lambda path: replace_line(path, "caf\u00e92.png,1".encode())
)
for _called, _cell in (
    ("a number is a word", b"many"),
    ("a number is too large", b"1e39"),
    ("a number is missing", b"NA"),
):
    damage_file(*((name, "train.csv") for name in NUMBERED), called=_called)(
        lambda path, cell=_cell: replace_line(path, path.read_bytes().splitlines()[4].partition(b",")[0] + b"," + cell)
    )
