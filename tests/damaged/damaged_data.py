"""Damaged data: images in folders and records, IDX files, tables of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, List

import numpy as np
from damage import Case, damage, kind
from PIL import Image

from mxtrain.dataset.image_folder import ImageFolder
from mxtrain.dataset.image_record import ImageRecord
from mxtrain.dataset.make_record import make_record

FOLDER, RECORDS = "image folder", "RecordIO"

CASES: List[Case] = [
    Case(FOLDER, "an image is cut off", "red/3.png' cannot be read as an image", 1),
    Case(FOLDER, "a class folder is empty", "The class folder"),
    Case(RECORDS, "the .rec file is cut off", "images_train.rec' is truncated"),
    Case(RECORDS, "the .idx file is no index", "images_train.idx' is not an index of records"),
]


def read_splits(dataset: Any) -> Callable[[], None]:
    """Opens a dataset and reads every sample of it."""

    def read() -> None:
        splits = dataset.open()
        for source in (splits.train, splits.val, splits.test):
            if source is not None:
                source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)

    return read


def write_images(folder: Path) -> Path:
    """Eight images of each of two classes."""
    rng = np.random.RandomState(0)
    for name in ("blue", "red"):
        (folder / name).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(rng.randint(0, 256, (12, 16, 3), np.uint8)).save(folder / name / f"{number}.png")
    return folder


@kind(FOLDER)
def _image_folder(folder: Path) -> Callable[[], None]:
    return read_splits(ImageFolder(root=str(write_images(folder)), image_size=[8, 8]))


@kind(RECORDS)
def _records(folder: Path) -> Callable[[], None]:
    make_record(str(write_images(folder / "images")), str(folder / "images"))
    return read_splits(ImageRecord(root=str(folder), image_size=[8, 8]))


@damage(FOLDER, called="an image is cut off")
def _cut_image(folder: Path) -> None:
    halve(folder / "red" / "3.png")


@damage(FOLDER, called="a class folder is empty")
def _empty_class(folder: Path) -> None:
    (folder / "green").mkdir()


@damage(RECORDS, called="the .rec file is cut off")
def _cut_records(folder: Path) -> None:
    halve(folder / "images_train.rec")


@damage(RECORDS, called="the .idx file is no index")
def _no_index(folder: Path) -> None:
    (folder / "images_train.idx").write_text("nonsense")


def halve(path: Path) -> None:
    """Keeps the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
