"""Masks with colours, whose classes a table names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxed_files import draw
from PIL import Image
from recognised import recognised

from mxtrain.data.checking.dataset_check import CollectedFindings, check_dataset
from mxtrain.errors import DataError
from mxtrain.terminal.progress import SILENT
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

COLORS = {"sky": (0, 0, 255), "road": (128, 64, 128), "void": (0, 0, 0)}
TABLES = {
    "labelmap.txt": "# label:color_rgb:parts:actions\nsky:0,0,255::\nroad:128,64,128::\nvoid:0,0,0::\n",
    "class_dict.csv": "name,r,g,b\nsky,0,0,255\nroad,128,64,128\nvoid,0,0,0\n",
    "colors.txt": "sky,0,0,255\nroad, 128, 64, 128\n\nvoid,0,0,0",
    "colors.json": json.dumps({"sky": "#0000ff", "road": [128, 64, 128], "void": "000000"}),
}
NUMBER = np.arange(80).reshape(8, 10) % 3


def write(root: Path, table: str = "class_dict.csv", palette: bool = False) -> Path:
    (root / "masks").mkdir(parents=True)
    for name in "abc":
        draw(root / "images" / f"{name}.jpg", (10, 8))
        image = Image.fromarray(np.array(list(COLORS.values()), np.uint8)[NUMBER])
        (image.quantize() if palette else image).save(root / "masks" / f"{name}.png")
    (root / table).write_text(TABLES.get(table, ""))
    return root


def opened(root: Path, **settings: Any) -> Any:
    return SegmentationFolder(root=str(root), **{"image_size": [8, 10], "val_fraction": 0.34, **settings}).open()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("palette", [False, True])
def test_colours_are_classes_in_the_order_of_the_table(table, palette, tmp_path) -> None:
    splits = opened(write(tmp_path, table, palette))
    assert list(splits.class_names) == list(COLORS)
    assert (splits.train.source.mask(0, (10, 8)) == NUMBER).all() and list(splits.mask_values) == [0, 1, 2]


def test_colours_of_other_classes_are_ignored_and_tables_can_have_any_name(tmp_path) -> None:
    root = write(tmp_path)
    (root / "class_dict.csv").rename(root / "mine.csv")
    splits = opened(root, colors="mine.csv", classes=["road", "sky"])
    assert list(splits.class_names) == ["road", "sky"]
    assert (splits.train.source.mask(0, (10, 8)) == np.array([1, 0, -1])[NUMBER]).all()
    with pytest.raises(DataError, match="it has colours, such as"):
        opened(root, classes=["road", "sky"])
    with pytest.raises(
        DataError, match=r"mine.csv' has no class 'roed'. Did you mean 'road'\? It has: sky, road, void"
    ):
        opened(root, colors="mine.csv", classes=["roed"])
    with pytest.raises(DataError, match=r"dataset.colors=mime.csv: there is no file .* Did you mean 'mine.csv'"):
        opened(root, colors="mime.csv")
    with pytest.raises(DataError, match=r"dataset.mask_values: masks have the colours of .* Leave it out."):
        opened(root, colors="mine.csv", mask_values=[1, 2, 3])


def test_other_colours_are_refused_with_their_file(tmp_path) -> None:
    root = write(tmp_path)
    pixels = np.array(Image.open(root / "masks" / "b.png"))
    pixels[2:4, 3] = (1, 2, 3)
    Image.fromarray(pixels).save(root / "masks" / "b.png")
    findings = CollectedFindings()
    dataset = SegmentationFolder(root=str(root), image_size=[8, 10], val_fraction=0.34)
    check_dataset(dataset, findings, SILENT, 1)
    (problem,) = findings.shown["unreadable_mask"]
    assert problem.location.file.endswith("masks/b.png")
    assert "2 pixels have colours that the table has not, such as (1, 2, 3)" in problem.fact
    Image.fromarray(np.dstack([pixels, np.full((8, 10), 128, np.uint8)])).save(root / "masks" / "a.png")
    with pytest.raises(DataError, match="it has transparent pixels"):
        opened(root, val_fraction=0.1, split_seed=1)


@pytest.mark.parametrize(
    "table, text, message",
    [
        (
            "class_dict.csv",
            "name,r,g,b\nsky,0,0,255\nroad,0,0\n",
            r"class_dict.csv', line 3: a class has a name and three",
        ),
        ("class_dict.csv", "sky,0,0,256\nroad,0,0,1\n", "line 1: a class has a name and three numbers from 0 to 255"),
        ("class_dict.csv", "sky,0,0,255\nsky,0,0,1\n", "line 2 has the class 'sky' for the second time"),
        ("class_dict.csv", "sky,0,0,255\nroad,0,0,255\n", "line 2 has the colour of 'sky' for the second time"),
        ("class_dict.csv", "sky,0,0,255\n", "must have at least two classes, the background too"),
        ("colors.json", "{", "colors.json' is not JSON"),
        ("colors.json", "[1]", "colors.json' must be an object"),
        ("colors.json", '{"a": "red", "b": [1, 2, 3]}', "colors.json': a class has a name and three numbers"),
    ],
)
def test_wrong_tables_are_refused(table, text, message, tmp_path) -> None:
    (write(tmp_path, table) / table).write_text(text)
    with pytest.raises(DataError, match=message):
        opened(tmp_path)


def test_the_form_is_guessed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("data"), "colors.json")
    typed = "task=segmentation dataset=segmentation_folder dataset.root=data"
    assert recognised(SegmentationFolder, "data", "segmentation_folder") == ("images and masks in folders", typed)
