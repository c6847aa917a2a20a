"""Files of annotation tools as sources of conversions: boxes, outlines and key points in one pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import read_coco
from boxed_files import draw
from conversions import convert

from mxtrain.errors import DataError


def labelme(root: Path) -> None:
    shapes = [
        {"label": "cat", "shape_type": "rectangle", "points": [[10.5, 2], [30, 12]], "group_id": 1},
        {"label": "nose", "shape_type": "point", "points": [[12.5, 5]], "group_id": 1},
        {"label": "dog", "shape_type": "polygon", "points": [[1, 1], [21, 1], [21, 11.25]], "group_id": None},
    ]
    content = {"shapes": shapes, "imagePath": "a.png", "imageHeight": 20, "imageWidth": 40}
    (root / "a.json").write_text(json.dumps(content))


def via(root: Path) -> None:
    rectangle = {"name": "rect", "x": 10.5, "y": 2, "width": 19.5, "height": 10}
    polygon = {"name": "polygon", "all_points_x": [1, 21, 21], "all_points_y": [1, 1, 11.25]}
    shapes = {"cat": rectangle, "dog": polygon}
    regions = [{"shape_attributes": shape, "region_attributes": {"kind": name}} for name, shape in shapes.items()]
    (root / "via.json").write_text(json.dumps({"a.png1": {"filename": "a.png", "size": 1, "regions": regions}}))


def cvat(root: Path) -> None:
    labels = "".join(f"<label><name>{name}</name></label>" for name in ("cat", "dog"))
    box = '<box label="cat" xtl="10.5" ytl="2" xbr="30" ybr="12"/>'
    polygon = '<polygon label="dog" points="1,1;21,1;21,11.25"/>'
    image = f'<image id="0" name="a.png" width="40" height="20">{box}{polygon}</image>'
    (root / "annotations.xml").write_text(f"<annotations><meta><labels>{labels}</labels></meta>{image}</annotations>")


def label_studio(root: Path) -> None:
    common = {"original_width": 40, "original_height": 20, "image_rotation": 0, "from_name": "x", "to_name": "image"}
    box = {"x": 26.25, "y": 10, "width": 48.75, "height": 50, "rotation": 0, "rectanglelabels": ["cat"]}
    points = [[2.5, 5], [52.5, 5], [52.5, 56.25]]
    regions = [
        {**common, "id": "b", "type": "rectanglelabels", "value": box},
        {**common, "id": "p", "type": "polygonlabels", "value": {"points": points, "polygonlabels": ["dog"]}},
    ]
    annotation = {"id": 1, "was_cancelled": False, "ground_truth": False, "result": regions}
    task = {"id": 1, "data": {"image": "/data/upload/1/0a1b2c3d-a.png"}, "annotations": [annotation]}
    (root / "export.json").write_text(json.dumps([task]))


@pytest.mark.parametrize("tool", [labelme, via, cvat, label_studio])
def test_objects_of_annotation_tools(tmp_path, tool: Any) -> None:
    root = tmp_path / "source"
    draw(root / "a.png", (40, 20))
    tool(root)
    result = convert(root, tmp_path / "coco", to="coco")
    assert result.read_as == f"dataset={tool.__name__}" and list(result.class_names) == ["cat", "dog"]
    found, names = read_coco(tmp_path / "coco")
    cat, dog = found["train"][0].things
    np.testing.assert_allclose(cat.edges, [10.5, 2, 30, 12], atol=1e-9)
    np.testing.assert_allclose(cat.polygons[0][2], [30, 12], atol=1e-9)
    np.testing.assert_allclose(dog.polygons[0], [[1, 1], [21, 1], [21, 11.25]], atol=1e-9)
    assert names == ["cat", "dog"] and [tuple(point) for point in cat.points] == [(12.5, 5, 2)] * (tool is labelme)


def test_outlines_of_a_group_of_cvat_are_one_object_in_coco(tmp_path) -> None:
    draw(tmp_path / "source" / "a.png", (40, 20))
    parts = [f'<polygon label="cat" points="{x},1;{x + 4},1;{x + 4},5" group_id="3"/>' for x in (1, 11)]
    labels = "<meta><labels><label><name>cat</name></label></labels></meta>"
    image = f'<image id="0" name="a.png" width="40" height="20">{"".join(parts)}</image>'
    (tmp_path / "source" / "annotations.xml").write_text(f"<annotations>{labels}{image}</annotations>")
    convert(tmp_path / "source", tmp_path / "coco", to="coco")
    (thing,) = read_coco(tmp_path / "coco")[0]["train"][0].things
    assert len(thing.polygons) == 2 and thing.edges == (1, 1, 15, 5)


def test_a_box_outside_of_an_image_whose_size_the_annotation_does_not_say(tmp_path) -> None:
    draw(tmp_path / "source" / "a.png", (28, 20))
    via(tmp_path / "source")
    with pytest.raises(DataError, match="10.5, 2, 30, 12 .* reaches 2 pixels beyond its image of 28 x 20"):
        convert(tmp_path / "source", tmp_path / "voc", to="voc", drop="masks")


def test_several_formats_in_a_folder_are_asked_for(tmp_path) -> None:
    draw(tmp_path / "source" / "a.png", (40, 20))
    cvat(tmp_path / "source")
    via(tmp_path / "source")
    with pytest.raises(DataError, match=r"can be dataset=cvat .* or dataset=via .*. Type one of them"):
        convert(tmp_path / "source", tmp_path / "coco", to="coco")
    assert convert(tmp_path / "source", tmp_path / "coco", "dataset=via", to="coco").num_objects == 2


def test_unnamed_classes_are_asked_for(tmp_path) -> None:
    draw(tmp_path / "source" / "images" / "a.png", (40, 20))
    (tmp_path / "source" / "labels").mkdir()
    (tmp_path / "source" / "labels" / "a.txt").write_text("1 .5 .5 .25 .5\n")
    with pytest.raises(DataError, match=r"Type also dataset.classes=\[NAME,...\]"):
        convert(tmp_path / "source", tmp_path / "coco", to="coco")
    convert(tmp_path / "source", tmp_path / "coco", "dataset.classes=[cat,dog]", to="coco")
    found, names = read_coco(tmp_path / "coco")
    assert names == ["cat", "dog"] and found["train"][0].things[0].edges == (15, 5, 25, 15)
