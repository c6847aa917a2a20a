"""COCO's panoptic masks as classes of pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxed_files import draw
from PIL import Image
from recognised import recognised

from mxtrain.errors import DataError
from mxtrain.vision.segmentation.coco_panoptic import CocoPanoptic

SEGMENT = np.array([[0, 300, 300, 70000], [5, 5, 0, 70000]])
"""Ids of the segments of each pixel, 0 for none."""
CATEGORIES = [{"id": 7, "name": "tree", "isthing": 0}, {"id": 2, "name": "cat", "isthing": 1}, {"id": 9, "name": "sky"}]
SEGMENTS = [{"id": 300, "category_id": 7}, {"id": 5, "category_id": 2}, {"id": 70000, "category_id": 9}]


def write(root: Path, segments: Any = SEGMENTS, **more: Any) -> Path:
    for split in ("train2017", "val2017"):
        folder = root / "annotations" / f"panoptic_{split}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in "ab":
            draw(root / split / f"{name}.jpg", (4, 2), seed=ord(name) + len(split))
            channels = [SEGMENT & 255, SEGMENT >> 8 & 255, SEGMENT >> 16]
            Image.fromarray(np.stack(channels, -1).astype(np.uint8)).save(folder / f"{name}.png")
        content = {
            "images": [{"id": name, "file_name": f"{name}.jpg", "width": 4, "height": 2} for name in "ab"],
            "annotations": [{"image_id": name, "file_name": f"{name}.png", "segments_info": segments} for name in "ab"],
            "categories": CATEGORIES,
            **more,
        }
        (root / "annotations" / f"panoptic_{split}.json").write_text(json.dumps(content))
    return root


def opened(root: Path, **settings: Any) -> Any:
    return CocoPanoptic(root=str(root), image_size=[2, 4], **settings).open()


def test_segments_are_classes_by_their_category_and_other_pixels_are_ignored(tmp_path) -> None:
    splits = opened(write(tmp_path))
    assert list(splits.class_names) == ["cat", "tree", "sky"]
    expected = [[-1, 1, 1, 2], [0, 0, -1, 2]]
    assert splits.train.mask(1, (4, 2)).tolist() == splits.val.mask(0, (4, 2)).tolist() == expected
    splits = opened(tmp_path, classes=["sky", "cat"], val_annotations=None, val_fraction=0.5)
    assert splits.train.source.mask(0, (4, 2)).tolist() == [[-1, -1, -1, 0], [1, 1, -1, 0]]
    assert list(splits.class_names) == ["sky", "cat"] and len(splits.val) == 1


@pytest.mark.parametrize(
    "more, message",
    [
        ({"segments": SEGMENTS[:2]}, r"a.png' cannot be read as a mask \(2 pixels have colours that the table has not"),
        ({"segments": [{"id": 300}]}, "annotations: record 0 of '.*' lacks one of its fields"),
        ({"segments": [{"id": 300, "category_id": 8}]}, "record 0 of '.*' has the category 8, which the file does not"),
        ({"images": []}, "annotations: record 0 of .*: the image a is not in the file."),
        ({"categories": [*CATEGORIES, {"id": 1, "name": "cat"}]}, "has two categories of the name 'cat'"),
        ({"categories": CATEGORIES[:1], "segments": SEGMENTS[:1]}, "has 1 categories, and 2 to 255 can be learned"),
        (
            {"images": [{"id": n, "file_name": f"{n}.png"} for n in "ab"]},
            "record 0 of '.*' needs '.*a.png', and there is",
        ),
        (
            {"annotations": [{"image_id": "a", "file_name": "a.png", "segments_info": SEGMENTS}] * 2},
            "a is annotated twice",
        ),
        (
            {"annotations": [{"image_id": "a", "file_name": "x.png", "segments_info": SEGMENTS}]},
            "needs '.*/x.png', and",
        ),
    ],
)
def test_wrong_annotations_are_refused(more, message, tmp_path) -> None:
    with pytest.raises(DataError, match=message):
        opened(write(tmp_path, **more))


def test_wrong_files_and_classes_are_refused(tmp_path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match=r"has no category 'car'. Did you mean 'cat'\? It has: cat, tree, sky."):
        opened(tmp_path, classes=["car", "cat"])
    path = tmp_path / "annotations" / "panoptic_train2017.json"
    path.write_text('{"images": []}')
    with pytest.raises(DataError, match="has no annotations and no categories: it is no panoptic annotation of COCO"):
        opened(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="there is no file '.*panoptic_train2017.json'"):
        opened(tmp_path)


def test_categories_that_only_the_validation_split_has_are_refused(tmp_path) -> None:
    path = write(tmp_path) / "annotations" / "panoptic_val2017.json"
    path.write_text(path.read_text().replace('"sky"', '"skies"'))
    with pytest.raises(
        DataError, match="record 0 of '.*val2017.json' has the category 'skies', which the training split"
    ):
        opened(tmp_path)
    assert opened(tmp_path, classes=["cat", "sky"]).val.mask(0, (4, 2))[0, 3] == -1


def test_the_form_is_guessed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("data"))
    form, typed = recognised(CocoPanoptic, "data", "coco_panoptic")
    assert form == "COCO's panoptic segmentation" and typed.startswith("task=segmentation dataset=coco_panoptic")
    assert "dataset.train_annotations=annotations/panoptic_train2017.json" in typed and "val2017" in typed
    assert opened(Path("data")).counts() == {"images": 4, "classes": 3}
