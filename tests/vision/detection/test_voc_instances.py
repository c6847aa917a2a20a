"""VOC's masks of single objects: found beside the boxes, and what is wrong with them said."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxed_files import IMAGES, write_voc
from PIL import Image

from mxtrain.cli.dispatch import run
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.detection.boxes import NUM_COLUMNS, Column, is_box
from mxtrain.vision.detection.voc import Voc, VocInstances
from mxtrain.vision.instance_segmentation.mask_rows import TRUE_SIDE
from mxtrain.vision.kinds import Masks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Masks that fill their boxes; a later object lies over an earlier one, with a white outline above."""
    root = write_voc(tmp_path / "voc1")
    shutil.copytree(root / "ImageSets/Main", root / "ImageSets/Segmentation")
    shutil.rmtree(root / "ImageSets/Main")
    (root / "SegmentationObject").mkdir()
    for name, ((width, height), boxes) in IMAGES.items():
        value = np.zeros((height, width), np.uint8)
        for number, (_, left, top, right, bottom) in enumerate(boxes):
            value[top:bottom, left:right] = number + 1
            value[top : top + 1, left:right] = 255 if bottom - top > 2 else number + 1
        image = Image.fromarray(value)  # grey: putpalette makes it one with a palette
        image.putpalette(list(range(256)) * 3)
        image.save(root / "SegmentationObject" / f"{name}.png")
    return root


def opened(root: Path, **options: Any) -> Any:
    options = {"classes": ["cat", "Dog"], "image_size": [64, 64], **options}
    dataset = Voc(root=str(root), **options).for_run(Masks)
    assert type(dataset) is VocInstances
    return dataset.open()


@pytest.mark.parametrize("classes, numbers", [(["cat", "Dog"], [0, 1]), (["Dog"], [1])])
def test_masks_belong_to_their_objects(root: Path, classes: Any, numbers: Any) -> None:
    splits = opened(root, classes=classes, other_classes="leave_out")
    source = splits.train
    masks = source.masks(0)
    assert len(masks) == len(numbers) == len(source.boxes(0))
    value_hw = np.asarray(Image.open(root / "SegmentationObject/a.png"))
    for number, mask_hw in zip(numbers, masks):
        np.testing.assert_array_equal(mask_hw, value_hw == number + 1)
    _, row_BMR, fact_BF = source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)
    assert len(fact_BF[0, -1]) == len(numbers) and fact_BF[2, -1] == ()
    row_MR = row_BMR[0][is_box(row_BMR[0])]
    assert row_MR[:, Column.AREA].tolist() == [mask_hw.sum() for mask_hw in masks]
    mask_SS = row_MR[0, NUM_COLUMNS:].reshape(TRUE_SIDE, TRUE_SIDE)
    # The outline is of no object, and part of the cat is under the dog.
    assert not mask_SS[0].any() and mask_SS[5].all() and mask_SS[-1].all() == (classes == ["Dog"])


def test_missing_masks_and_lists_are_refused(root: Path) -> None:
    (root / "SegmentationObject/b.png").unlink()
    with pytest.raises(DataError, match=r"b\.xml' has no mask '.*b\.png' \(1 of 3 masks are missing\)"):
        opened(root)
    shutil.rmtree(root / "ImageSets/Segmentation")
    with pytest.raises(DataError, match="Segmentation"):
        opened(root)


def damage(root: Path, how: str) -> None:
    path = root / "SegmentationObject/a.png"
    value_hw = np.asarray(Image.open(path)).copy()
    if how == "mask_size":
        value_hw = value_hw[1:]
    elif how == "stray_mask_value":
        value_hw[0, 0] = 9
    elif how == "empty_mask":
        value_hw[value_hw == 2] = 0
    Image.fromarray(value_hw).save(path)
    if how == "unreadable_mask":
        path.write_bytes(path.read_bytes()[:60])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mask_size", "stray_mask_value", "empty_mask", "unreadable_mask"])
def test_wrong_masks_are_found_and_named(root: Path, capsys: Any, kind: str) -> None:
    words = ["task=instance_segmentation", "dataset=voc", f"dataset.root={root}", "dataset.classes=[cat,Dog]"]
    assert run(["data", "check", *words]) == 0
    capsys.readouterr()
    damage(root, kind)
    assert run(["data", "check", *words]) == 2
    said = capsys.readouterr().out
    assert f"{kind}: 1\n" in said and "SegmentationObject/a.png'" in said and "  -> " in said
    source = opened(root).train
    if kind in ("mask_size", "unreadable_mask"):
        with pytest.raises(LoaderError, match=r"a\.png"):
            source.fetch(np.array([0]), seed=0, epoch=0, train=True)
    else:
        assert is_box(source.fetch(np.array([0]), seed=0, epoch=0, train=False)[1]).sum() == 2
