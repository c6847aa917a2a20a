"""COCO's masks: what is read is what COCO's own tool reads, masks move as pixels do, and what is wrong is said."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any, Callable, Dict

import numpy as np
import pytest
from boxed_files import draw, write_coco
from PIL import Image
from pycocotools import mask as coco_mask

from mxtrain.cli.dispatch import run
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.detection.box_augment import BoxAugment
from mxtrain.vision.detection.boxes import NUM_COLUMNS, Column, Flag, is_box
from mxtrain.vision.detection.coco import Coco, CocoInstances
from mxtrain.vision.instance_segmentation.coco_masks import BadMask, read_mask
from mxtrain.vision.instance_segmentation.mask_rows import TRUE_SIDE, decode_mask
from mxtrain.vision.kinds import Masks


def opened(root: Path, **options: Any) -> Any:
    options = {"image_size": [64, 64], **options}
    return Coco(root=str(root), **options).for_run(Masks).open()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "coco")


def train_file(root: Path) -> Path:
    return root / "annotations/instances_train2017.json"


def change(root: Path, how: Callable[[Dict[str, Any]], None]) -> None:
    """Changes the annotation of the image a that is named `cat`."""
    parts = json.loads(train_file(root).read_text())
    for one in parts["annotations"]:
        if one["image_id"] == 100 + 7 * ord("a") and one["category_id"] == 17:
            how(one)
    train_file(root).write_text(json.dumps(parts))


def runs(mask_hw: np.ndarray, as_text: bool) -> Dict[str, Any]:
    """A mask as COCO's files have it, of regions of many objects above all."""
    code = coco_mask.encode(np.asfortranarray(mask_hw, np.uint8))
    if as_text:
        return {"size": list(mask_hw.shape), "counts": code["counts"].decode()}
    flat = np.concatenate([[0], mask_hw.T.ravel()])
    edges = np.flatnonzero(np.diff(np.concatenate([flat, [1 - flat[-1]]])) != 0)
    return {"size": list(mask_hw.shape), "counts": np.diff(np.concatenate([[0], edges])).tolist()}


def test_masks_equal_pycocotools(root: Path) -> None:
    from pycocotools.coco import COCO

    rng = np.random.RandomState(0)
    blob = np.zeros((40, 60), np.uint8)
    blob[6:18, 8:29] = rng.rand(12, 21) > 0.4
    for segmentation in (
        [[5, 4, 30, 4, 17.5, 20]],
        [[5, 4, 15, 4, 15, 20], [20.2, 5, 30, 5.5, 25, 19]],
        runs(blob, False),
        runs(blob, True),
    ):
        change(root, lambda one, given=segmentation: one.update(segmentation=given))  # type: ignore[misc]
        source = opened(root).train
        with contextlib.redirect_stdout(io.StringIO()):
            coco = COCO(str(train_file(root)))
        image_ids = sorted(coco.getImgIds())
        index_B = np.arange(len(source))
        _, row_BMR, fact_BF = source.fetch(index_B, seed=0, epoch=0, train=False)
        for index, image in enumerate(image_ids):
            size = (coco.imgs[image]["height"], coco.imgs[image]["width"])
            wanted = {tuple(one["bbox"]): coco.annToMask(one) for one in coco.loadAnns(coco.getAnnIds([image]))}
            boxes, masks = source.boxes(index), source.masks(index)
            rows = row_BMR[index][is_box(row_BMR[index])]
            assert len(boxes) == len(masks) == len(wanted) == len(fact_BF[index, -1]) == len(rows)
            for row, mask_hw, code in zip(boxes, masks, fact_BF[index, -1]):
                left, top, right, bottom = row[:4]
                np.testing.assert_array_equal(mask_hw, wanted[left, top, right - left, bottom - top])
                np.testing.assert_array_equal(decode_mask(code, size), mask_hw)
            np.testing.assert_allclose(rows[:, :4], boxes[:, :4] * np.tile([64 / size[1], 64 / size[0]], 2), rtol=1e-5)
            np.testing.assert_array_equal(rows[:, 4:NUM_COLUMNS], boxes[:, 4:NUM_COLUMNS].astype(np.float32))
    assert source.boxes(1)[0, Column.FLAGS] == Flag.CROWD and not row_BMR[1, 0, NUM_COLUMNS:].any()


def test_a_mask_has_memory_only_when_it_is_needed(root: Path) -> None:
    outlines = opened(root).train._outlines
    assert outlines.span_R2.shape == (3, 2) and {type(one).__name__ for one in vars(outlines).values()} == {
        "JsonFile",
        "ndarray",
    }


def write_shapes(root: Path, image_entries: int = 4) -> Path:
    """Images of black with a white polygon or blob in each half, whose masks say so."""
    rng = np.random.RandomState(3)
    images, annotations = [], []
    (root / "annotations").mkdir(parents=True)
    for number in range(image_entries):
        width, height = 90 + 7 * number, 80
        image = np.zeros((height, width), np.uint8)
        images.append({"id": number, "file_name": f"{number}.png", "width": width, "height": height})
        for part in range(2):
            left, top = 5 + part * width // 2, int(rng.randint(3, 20))
            corner = np.array([[0, 0], [34, 8], [30, 40], [12, 22], [2, 44]]) + [left, top]
            mask = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects([corner.ravel().tolist()], height, width)))
            image[mask > 0] = 255
            given = [corner.ravel().tolist()] if part else runs(mask, as_text=bool(number % 2))
            annotations.append(
                {
                    "id": 1 + len(annotations),
                    "image_id": number,
                    "category_id": 1 + part,
                    "iscrowd": 0,
                    "bbox": [left, top, 34, 44],
                    "area": int(mask.sum()),
                    "segmentation": given,
                }
            )
        draw(root / "train2017" / f"{number}.png", (4, 4))
        Image.fromarray(image).convert("RGB").save(root / "train2017" / f"{number}.png")
    categories = [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]
    train_file(root).write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("mosaic", [0.0, 1.0])
@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_masks_move_as_pixels_do(tmp_path: Path, fit: str, mosaic: float) -> None:
    """The network's input is white exactly where the instance masks are set."""
    augment = BoxAugment(brightness=0, contrast=0, saturation=0, hue=0, mosaic=mosaic)
    source = opened(
        write_shapes(tmp_path / "s"),
        image_size=[96, 128],
        fit=fit,
        val_annotations=None,
        val_fraction=0.25,
        augment=augment,
        mean=[0.0, 0.0, 0.0],
    ).train
    index_B, agreeing, seen = np.arange(len(source)), [], 0
    for epoch in range(12):
        image_BCHW, row_BMR, fact_BF = source.fetch(index_B, seed=5, epoch=epoch, train=True)
        again = source.fetch(index_B[::-1], seed=5, epoch=epoch, train=True)
        np.testing.assert_array_equal(row_BMR, again[1][::-1])
        assert [fact[-1] for fact in fact_BF] == [()] * len(index_B)  # whole masks are not read in training
        for image_CHW, row_MR in zip(image_BCHW, row_BMR):
            for row_R in row_MR[is_box(row_MR)]:
                left, top, right, bottom = row_R[:4]
                mask_SS = row_R[NUM_COLUMNS:].reshape(TRUE_SIDE, TRUE_SIDE) > 0
                at_S = (np.arange(TRUE_SIDE) + 0.5) / TRUE_SIDE
                lines = np.floor(top + at_S * (bottom - top)).astype(int).clip(0, 95)
                columns = np.floor(left + at_S * (right - left)).astype(int).clip(0, 127)
                part = image_CHW[0][np.ix_(lines, columns)]
                is_clear = (part < 20) | (part > 235)  # not at an edge, where pixels were mixed
                assert mask_SS.any()
                agreeing.append((mask_SS == (part > 127))[is_clear].mean())
                seen += 1
    assert seen > 20 and np.mean(agreeing) > 0.985 and min(agreeing) > 0.9
    other = source.fetch(index_B, seed=6, epoch=0, train=True)[1]
    assert other.shape == row_BMR.shape and (other != source.fetch(index_B, seed=5, epoch=0, train=True)[1]).any()


def test_object_without_visible_pixels_is_omitted(tmp_path: Path) -> None:
    """A box with a mask in its upper left corner alone: most parts of the image do not show that."""
    root = write_shapes(tmp_path / "s")
    parts = json.loads(train_file(root).read_text())
    for one in parts["annotations"]:
        x, y, _, _ = one["bbox"]
        one["segmentation"] = [[x, y, x + 3, y, x + 3, y + 3, x, y + 3]]
    train_file(root).write_text(json.dumps(parts))
    source = opened(root, val_annotations=None, val_fraction=0.25, augment=BoxAugment(expand=1)).train
    counts = []
    for epoch in range(15):
        _, row_BMR, _ = source.fetch(np.arange(len(source)), seed=0, epoch=epoch, train=True)
        counts.append(is_box(row_BMR).sum())
        assert row_BMR[is_box(row_BMR)][:, NUM_COLUMNS:].any(axis=1).all()
    boxes = (
        Coco(root=str(root), image_size=[64, 64], val_annotations=None, val_fraction=0.25, augment=BoxAugment(expand=1))
        .open()
        .train
    )
    all_boxes = [is_box(boxes.fetch(np.arange(3), seed=0, epoch=epoch, train=True)[1]).sum() for epoch in range(15)]
    assert sum(counts) < sum(all_boxes)


FAULTS = {
    "empty_mask": [[], None, [[5, 4, 30, 4, 17, 4]], runs(np.zeros((40, 60)), False)],
    "short_polygon": [[[5, 4, 30, 20]]],
    "not_a_number": [
        [[5, 4, 30, 4, 17, "1_7"]],
        [[5, 4, 30, 4, 17]],
        [[5, 4, 30, 4, 17, 1e999]],
        [5, 4, 30, 4, 17, 20],
    ],
    "mask_outside": [[[5, 4, 90, 4, 17, 20]]],
    "mask_size": [runs(np.ones((60, 40)), False), runs(np.ones((60, 40)), True)],
    "unreadable_mask": [
        {"size": [40, 60], "counts": [1, 2, 3]},
        {"size": [40, 60], "counts": "~~"},
        {"counts": "04"},
        {"size": [40, 60], "counts": [2500, -100]},
        {"size": [40, 60], "counts": "o" * 30},
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind, given", [(kind, one) for kind, these in FAULTS.items() for one in these])
def test_wrong_masks_are_refused_with_their_place(root: Path, capsys: Any, kind: str, given: Any) -> None:
    change(root, lambda one: one.update(segmentation=given))
    record = [one["segmentation"] == given for one in json.loads(train_file(root).read_text())["annotations"]]
    with pytest.raises(DataError) as error:
        opened(root)
    place = f"annotations: record {record.index(True) if True in record else 2} of '{train_file(root)}'"
    assert str(error.value).startswith(place) and "dataset.wrong_boxes=mend" in str(error.value)
    words = ["task=instance_segmentation", "dataset=coco", f"dataset.root={root}", "logger=[]"]
    assert run(["data", "check", *words]) == 2
    said = capsys.readouterr().out
    assert f"{kind}: 1\n" in said and place in said
    mended = opened(root, wrong_boxes="mend").train
    assert len(mended.boxes(0)) == (2 if kind == "mask_outside" else 1)
    assert Coco(root=str(root)).open().train is not None  # who does not ask for masks is not told of them


@pytest.mark.slow
def test_polygon_of_too_few_points_is_omitted_and_listed(root: Path, capsys: Any) -> None:
    change(root, lambda one: one.update(segmentation=[[5, 4, 30, 4], [5, 4, 30, 4, 30, 20]]))
    assert len(opened(root).train.masks(0)) == 2
    assert run(["data", "check", "task=instance_segmentation", "dataset=coco", f"dataset.root={root}"]) == 2
    assert "has a polygon of 2 points, fewer than 3" in capsys.readouterr().out


def test_invalid_run_lengths_are_no_mask() -> None:
    with pytest.raises(BadMask, match="without their size"):
        read_mask({"size": "no", "counts": [3]}, None)
    outline, faults = read_mask(runs(np.eye(7), True), None)
    assert faults == [] and outline.in_image((7, 7)).tolist() == np.eye(7).tolist()


def test_a_file_that_changes_while_it_is_read_is_reported(root: Path) -> None:
    source = opened(root).train
    text = train_file(root).read_text()
    train_file(root).write_text("[" * len(text))
    with pytest.raises(LoaderError, match=re.escape("has changed since it was opened")):
        source.fetch(np.array([0]), seed=0, epoch=0, train=True)


@pytest.mark.slow
def test_a_dataset_has_the_masks_that_a_task_asks_for(describe_run: Any, root: Path) -> None:
    words = ("dataset=coco", f"dataset.root={root}", "dataset.classes=[cat]")
    assert type(describe_run(*words).dataset) is Coco
    dataset = describe_run("task=instance_segmentation", *words).dataset
    assert type(dataset) is CocoInstances and dataset.classes == ["cat"]


@pytest.mark.slow
def test_a_network_is_trained_on_masks_in_several_sizes(train_run: Any, root: Path) -> None:
    _, result = train_run(
        "task=instance_segmentation",
        "dataset=coco",
        f"dataset.root={root}",
        "dataset.image_size=[32,32]",
        "dataset.image_sizes=[32,48]",
        "dataset.image_sizes_interval=1",
        "dataset.batch_size=2",
        "trainer.max_epochs=4",
        "dataset.augment.mosaic=0.5",
        "model.channels=[8,16]",
        "model.width=8",
        "metric=[mask_ap50,mask_ap,mask_ar,voc_ap]",
    )
    assert result.exit_code == 0 and {"val/mask_ap", "val/mask_ar", "val/voc_ap"} <= set(result.metrics)


@pytest.mark.parametrize("form", ["shares", "y before x", "runs of rows"])
def test_mask_outside_its_box_is_refused(root: Path, form: str) -> None:
    mask_hw = np.zeros((40, 60), np.uint8)
    mask_hw[2:6, 40:58] = 1
    segmentation = {
        "shares": [[0.7, 0.05, 0.9, 0.05, 0.9, 0.15]],
        "y before x": [[2, 40, 6, 40, 6, 58, 2, 58]],
        "runs of rows": runs(mask_hw.reshape(60, 40).T, True),
    }[form]
    change(root, lambda one: one.update(bbox=[40, 2, 18, 4], segmentation=segmentation))
    with pytest.raises(DataError, match="has a mask around which .* is the smallest box, and the bbox is 40, 2, 58, 6"):
        opened(root)
    change(root, lambda one: one.update(segmentation=runs(mask_hw, False)))
    assert [np.array_equal(mask, mask_hw) for mask in opened(root).train.masks(0)].count(True) == 1


def test_extents_of_runs_equal_their_pixels() -> None:
    rng = np.random.RandomState(0)
    for _ in range(50):
        mask_hw = np.zeros((7, 9), np.uint8)
        top, left = rng.randint(0, 5), rng.randint(0, 7)
        mask_hw[top : top + 2, left : left + rng.randint(1, 3)] = rng.randint(0, 2, (2, 1))
        mask_hw[top, left] = 1
        outline, _ = read_mask(runs(mask_hw, bool(rng.randint(2))), (7, 9))
        rows, columns = np.flatnonzero(mask_hw.any(axis=1)), np.flatnonzero(mask_hw.any(axis=0))
        assert outline.extent() == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
