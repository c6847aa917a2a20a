"""Annotation files of tools that are damaged: each error names the file and says what is wrong, with exit code 2."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest
from boxed_files import draw

from mxtrain.errors import DataError
from mxtrain.vision.objects.box_csv import BoxCsv
from mxtrain.vision.objects.cvat import Cvat
from mxtrain.vision.objects.label_studio import LabelStudio
from mxtrain.vision.objects.labelme import Labelme
from mxtrain.vision.objects.via import Via
from mxtrain.vision.objects.yolo import Yolo

RECTANGLE = {"label": "cät", "points": [[1, 1], [9, 9]], "shape_type": "rectangle", "group_id": None}
REGION = {
    "original_width": 40,
    "original_height": 20,
    "value": {"x": 5, "y": 5, "width": 50, "height": 50, "rectanglelabels": ["cät"]},
}
VIA = {"shape_attributes": {"name": "rect", "x": 1, "y": 1, "width": 9, "height": 9}, "region_attributes": {"a": "cät"}}
BOX = '<box label="cät" xtl="1" ytl="1" xbr="9" ybr="9"/>'

FORMATS: Dict[str, Tuple[Any, str, str]] = {
    "yolo": (Yolo, "a.txt", "0 0.5 0.5 0.25 0.25\n1 0.5 0.5 0.125 0.125\n"),
    "yolo's description": (Yolo, "data.yaml", "train: ./\nval: ./\nnames:\n  0: cät\n  1: dog\n"),
    "csv": (BoxCsv, "train.csv", "image,xmin,ymin,xmax,ymax,class\na.png,1,1,9,9,cät\nb.png,1,1,9,9,cät\n"),
    "labelme": (Labelme, "a.json", json.dumps({"shapes": [RECTANGLE], "imagePath": "a.png"}, ensure_ascii=False)),
    "label studio": (
        LabelStudio,
        "export.json",
        json.dumps(
            [{"data": {"image": f"{n}.png"}, "annotations": [{"result": [REGION]}]} for n in "ab"], ensure_ascii=False
        ),
    ),
    "cvat": (
        Cvat,
        "annotations.xml",
        '<?xml version="1.0" encoding="utf-8"?><annotations>'
        + "".join(f'<image name="{n}.png" width="40" height="20">{BOX}</image>' for n in "ab")
        + "</annotations>",
    ),
    "via": (
        Via,
        "via.json",
        json.dumps({n: {"filename": f"{n}.png", "regions": [VIA]} for n in "ab"}, ensure_ascii=False),
    ),
}


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def named_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


DAMAGES: Dict[str, Callable[[Path], object]] = {
    "cut off": rewrite(lambda content: content[: -len(content) // 3]),
    "in Latin-1": rewrite(lambda content: content.decode().encode("latin-1")),
    "in UTF-16": rewrite(lambda content: content.decode().encode("utf-16")),
    "packed": rewrite(gzip.compress),
    "zeros": rewrite(lambda content: bytes(len(content))),
    "a named pipe": named_pipe,
    "a link to nothing": link_to_nothing,
}
READ_ANYWAY = {("yolo", "in Latin-1")}
"""Numbers are the same in Latin-1."""


@pytest.mark.timeout(30)
@pytest.mark.parametrize("damage", [None, *DAMAGES])
@pytest.mark.parametrize("form", FORMATS)
def test_damaged_annotations_are_refused_with_their_file(form, damage, tmp_path) -> None:
    for _, name, text in (
        (FORMATS["yolo"], FORMATS["labelme"]) if form in ("yolo", "yolo's description", "labelme") else ()
    ):
        if (form == "labelme") == name.endswith(".json"):
            for image in "ab":
                (tmp_path / name.replace("a", image, 1)).write_text(text.replace("a.png", f"{image}.png"))
    kind, name, text = FORMATS[form]
    (tmp_path / name).write_text(text, encoding="utf-8")
    if form == "yolo":
        (tmp_path / "classes.txt").write_text("cat\ndog\n")
    for number, image in enumerate("ab"):
        draw(tmp_path / f"{image}.png", (40, 20), seed=number)
    settings = {"val": None} if kind is Yolo else {}
    in_folder = form in ("yolo", "labelme")
    dataset = kind(
        root=str(tmp_path if in_folder else tmp_path / name), image_size=[20, 40], val_fraction=0.5, **settings
    )
    if damage is not None:
        DAMAGES[damage](tmp_path / name)
    if damage is None or (form, damage) in READ_ANYWAY:
        assert len(dataset.open().train) == 1
        return
    with pytest.raises(DataError) as caught:
        dataset.open()
    lacking = "a.txt, line 2" if (form, damage) == ("yolo's description", "cut off") else name  # a name is missing
    assert caught.value.exit_code == 2 and lacking in str(caught.value)
