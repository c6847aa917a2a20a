"""Instance segmentation: what a run measures, writes and draws, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mxtrain.cli.dispatch import run
from mxtrain.data.spec import open_splits
from mxtrain.engine.backend import nd
from mxtrain.types import Batch
from mxtrain.vision.detection.boxes import NUM_COLUMNS, is_box
from mxtrain.vision.detection.signature import BoxSignature
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.instance_segmentation.mask_rows import (
    META_COLUMNS,
    PREDICTED_SIDE,
    TRUE_SIDE,
    decode_mask,
    encode_masks,
    paste_masks,
)
from mxtrain.vision.instance_segmentation.metrics import CollectedMasks, MaskAP
from mxtrain.vision.instance_segmentation.task import InstanceSegmentation

TASK = InstanceSegmentation()
SIGNATURE = BoxSignature(
    (3, 32, 40), class_names=["cat", "dog", "cow"], category_ids=[3, 5, 8], decoding=Decoding((3, 32, 40))
)
SMALL = (
    "task=instance_segmentation",
    "dataset.image_size=[32,32]",
    "dataset.digit_size=[12,20]",
    "dataset.num_train=24",
    "dataset.num_val=10",
    "dataset.batch_size=8",
    "dataset.eval_batch_size=4",
    "model.channels=[8,16]",
    "model.width=8",
    "model.prototypes=3",
)
ONE_EPOCH = ("trainer.max_epochs=1", "trainer.limit_train_batches=2")


def predicted() -> np.ndarray:
    """Two objects in an image of 40 x 30 pixels, of which one is not sure, and a row that is none."""
    found_NR = np.zeros((3, 8 + PREDICTED_SIDE**2), np.float32)
    found_NR[:, 6:8] = [30, 40]
    found_NR[0, :6], found_NR[1, :6], found_NR[2, 0] = [2, 0.9, 4, 5, 20, 25], [0, 0.1, 0, 0, 9, 9], -1
    found_NR[0, 8:] = np.repeat([1, 0], PREDICTED_SIDE**2 // 2)  # the upper half of the box
    return found_NR


@pytest.mark.slow
def test_masks_of_scenes_match_segmentation_digit_by_digit(describe_run: Any) -> None:
    words = ("dataset.digits=[3,4]", "dataset.num_val=30")
    described = [describe_run(f"task={task}", *words) for task in ("segmentation", "instance_segmentation")]
    masks, objects = (open_splits(description.dataset).val for description in described)
    index_B, counts = np.arange(30), []
    image_BCHW, mask_BHW, _ = masks.fetch(index_B, seed=0, epoch=0, train=False)
    same_BCHW, row_BMR, fact_BF = objects.fetch(index_B, seed=0, epoch=0, train=False)
    np.testing.assert_array_equal(image_BCHW, same_BCHW)
    assert fact_BF.shape == (30, META_COLUMNS)
    for mask_HW, row_MR, fact_F in zip(mask_BHW, row_BMR, fact_BF):
        row_GR, found_HW = row_MR[is_box(row_MR)], np.zeros_like(mask_HW)
        own = [decode_mask(code, (64, 64)) for code in fact_F[-1]]
        assert len(own) == len(row_GR)
        for row_R, own_HW in zip(row_GR, own):
            assert not found_HW[own_HW > 0].any()  # no pixel is of two: what is covered is lost
            found_HW[own_HW > 0] = row_R[4] + 1
            lines, columns = np.nonzero(own_HW)
            edges = [columns.min(), lines.min(), columns.max() + 1, lines.max() + 1]
            assert row_R[:4].tolist() == edges and row_R[6] == own_HW.sum()
            in_box = np.asarray(
                Image.fromarray(own_HW[edges[1] : edges[3], edges[0] : edges[2]]).resize(
                    (TRUE_SIDE, TRUE_SIDE), Image.Resampling.BOX
                )
            )
            np.testing.assert_array_equal(row_R[NUM_COLUMNS:].reshape(TRUE_SIDE, TRUE_SIDE), in_box)
        np.testing.assert_array_equal(found_HW, mask_HW)
        counts.append(len(row_GR))
    assert set(counts) <= {2, 3, 4} and {3, 4} <= set(counts)
    in_training = objects.fetch(index_B, seed=0, epoch=0, train=True)[2]
    assert all(one == () for one in in_training[:, -1])


@pytest.mark.slow
def test_true_masks_are_found_to_be_right(describe_run: Any) -> None:
    """The whole way from scenes to COCO's figures with a network that knows: masks of 28 x 28 squares lose little."""
    source = open_splits(describe_run("task=instance_segmentation", "dataset.num_val=40").dataset).val
    _, row_BMR, fact_BF = source.fetch(np.arange(40), seed=0, epoch=0, train=False)
    found = []
    for row_MR in row_BMR:
        row_GR = row_MR[is_box(row_MR)]
        share_GSS = row_GR[:, NUM_COLUMNS:].reshape(-1, PREDICTED_SIDE, 2, PREDICTED_SIDE, 2).mean(axis=(2, 4))
        columns = [row_GR[:, 4], np.full(len(row_GR), 0.9), row_GR[:, :4], np.full((len(row_GR), 2), 64)]
        found.append(np.column_stack([*columns, share_GSS.reshape(len(row_GR), -1)]))
    collected = CollectedMasks()
    collected.update(np.arange(40), found, row_BMR, fact_BF)
    assert MaskAP(iou=0.75).compute(collected) == pytest.approx(1.0) and MaskAP().compute(collected) > 0.95


@pytest.mark.slow
def test_predictions_have_the_size_of_their_image(describe_run: Any) -> None:
    description = describe_run("task=instance_segmentation", "model.prototypes=4")
    coding, decode = TASK._coding(description, SIGNATURE), TASK.build_decode(description, SIGNATURE)
    rng = np.random.RandomState(0)
    outputs = tuple(nd.array(rng.randn(2, *shape)) for shape in coding.output_shapes)
    plain = decode(outputs, Batch((), (), 2)).asnumpy()
    meta = np.empty((2, META_COLUMNS), object)
    meta[:] = [[64, 160, 32, 40, ()], [16, 40, 16, 40, ()]]  # the second was not resized, and padded below
    own = decode(outputs, Batch((), (), 2, meta=meta)).asnumpy()
    assert (plain[..., 6:8] == [32, 40]).all() and own[:, 0, 6:8].tolist() == [[64, 160], [16, 40]]
    is_inside = (plain[0, :, 2:4] > 0).all(axis=1) & (plain[0, :, 4] < 40) & (plain[0, :, 5] < 32)
    np.testing.assert_array_equal(own[0, is_inside, 8:], plain[0, is_inside, 8:])
    assert is_inside.any()
    np.testing.assert_allclose(own[0, is_inside, 2:6], plain[0, is_inside, 2:6] * [4, 2, 4, 2], rtol=1e-4)
    four = decode(outputs, Batch((), (), 2, meta=meta[:, :4])).asnumpy()  # of files without masks
    np.testing.assert_array_equal(four, own)


def test_masks_keep_their_position_when_boxes_are_clipped() -> None:
    """A mask is of the whole box, also of what is beyond the image, where the image is padded, too."""
    found_NR = predicted()[None, :2, [*range(6), *range(8, 8 + PREDICTED_SIDE**2)]]
    found_NR[0, :, 2:6] = [-20, 5, 20, 33], [2, -8, 18, 40]
    found_NR[0, 1, 6:] = np.repeat([1, 0, 1], [PREDICTED_SIDE * 7, PREDICTED_SIDE * 14, PREDICTED_SIDE * 7])
    inside_N4 = np.array([[0, 5, 20, 30], [2, 0, 18, 30]])
    arrays = (found_NR, found_NR[..., 2:6], inside_N4[None])
    cut_NR = TASK.clip_to_image(*map(nd.array, arrays)).asnumpy()[0]
    np.testing.assert_array_equal(cut_NR[:, 2:6], inside_N4)
    wanted = np.zeros((2, 30, 40), np.uint8)
    wanted[0, 5:19, :20] = 1  # the upper half of 28 lines
    wanted[1, :4, 2:18] = wanted[1, 28:, 2:18] = 1  # the first and the last 12 of 48 lines
    masks = paste_masks(cut_NR[:, 6:].reshape(2, PREDICTED_SIDE, PREDICTED_SIDE), cut_NR[:, 2:6], (30, 40))
    np.testing.assert_array_equal(masks, wanted)


def test_rows_and_cocos_form_of_a_prediction() -> None:
    row = TASK.row(SIGNATURE, predicted(), 1)
    (one,) = row["found"]
    assert (one["class"], one["score"], one["box"]) == ("cow", 0.9, [4, 5, 20, 25]) and one["mask"]["size"] == [30, 40]
    true_hw = np.zeros((30, 40), np.uint8)
    true_hw[5:15, 4:20] = 1
    np.testing.assert_array_equal(decode_mask(one["mask"]["counts"].encode(), (30, 40)), true_hw)
    assert json.loads(json.dumps(row)) == row and TASK.prediction_format().cells(row)["left"] == 4
    rows: Any = [{"sample_id": 42, **row}, {"sample_id": "b", "found": []}]
    results = json.loads("".join(TASK.prediction_format().write_as("coco", SIGNATURE, rows)))
    assert results == [{"image_id": 42, "category_id": 8, "segmentation": one["mask"], "score": 0.9}]
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        images = [{"id": 42, "height": 30, "width": 40}]
        coco.dataset = {"images": images, "categories": [], "annotations": [], "info": {}}
        coco.createIndex()
        loaded = coco.loadRes(results)
    assert loaded.anns[1]["area"] == 160 and list(loaded.anns[1]["bbox"]) == [4, 5, 16, 10]
    np.testing.assert_array_equal(loaded.annToMask(loaded.anns[1]), true_hw)
    assert TASK.row(SIGNATURE, predicted()[2:], 1) == {"found": []}


@pytest.mark.slow
def test_a_run_is_evaluated_predicts_and_draws(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    _, result = train_run(*SMALL, *ONE_EPOCH, "metric=[mask_ap50,mask_ap,voc_ap,coco_ap]")
    assert {"val/mask_ap50", "val/mask_ap", "val/voc_ap", "val/coco_ap"} <= set(result.metrics)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["metric_signatures"]["mask_ap"] == "COCO masks,iou=0.50:0.95,area=all,max_detections=100"
    assert run(["eval", str(tmp_path / "run"), "split=val"]) == 0
    folder = tmp_path / "run" / "eval" / "val"
    assert {"classes.csv", "coco.csv", "curves.png", "mistakes.png"} <= {path.name for path in folder.iterdir()}
    figures = dict(line.split(",", 1) for line in (folder / "coco.csv").read_text().splitlines()[1:])
    measured = json.loads((folder / "metrics.json").read_text())
    assert len(figures) == 12 and figures["AP large"] == ","
    np.testing.assert_allclose(
        [float(value) for value in figures["AP"].split(",")], [measured["mask_ap"], measured["coco_ap"]], atol=1e-6
    )
    for name, size in (("wide", (90, 40)), ("high", (20, 50))):
        Image.fromarray(np.full((size[1], size[0], 3), 90, np.uint8)).save(tmp_path / f"{name}.png")
    capsys.readouterr()
    words = [str(tmp_path / "wide.png"), str(tmp_path / "high.png"), "task.score_threshold=0"]
    assert run(["predict", str(tmp_path / "run"), *words, f"folder={tmp_path / 'drawn'}"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row, (width, height) in zip(rows, ((90, 40), (20, 50))):
        with Image.open(row["picture"]) as drawn:
            assert drawn.width * height == drawn.height * width
        assert row["found"]
        for one in row["found"]:
            mask_hw = decode_mask(one["mask"]["counts"].encode(), (height, width))
            left, top, right, bottom = one["box"]
            lines, columns = np.nonzero(mask_hw)
            if len(lines):
                assert columns.min() + 0.5 >= left - 0.01 and columns.max() + 0.5 <= right + 0.01
                assert lines.min() + 0.5 >= top - 0.01 and lines.max() + 0.5 <= bottom + 0.01
    assert run(["predict", str(tmp_path / "run"), *words, "format=coco", f"output={tmp_path / 'found.json'}"]) == 0
    assert len(json.loads((tmp_path / "found.json").read_text())) == sum(len(row["found"]) for row in rows)


def test_masks_are_drawn_in_the_colour_of_their_class(describe_run: Any) -> None:
    source = open_splits(describe_run(*SMALL).dataset).val
    signature: Any = SimpleNamespace(class_names=[str(number) for number in range(10)])
    found_NR = predicted()
    found_NR[:, 6:8] = 32
    content, bare = (
        TASK.prediction_format().encode_file(signature, one, source, 0) for one in (found_NR, found_NR[:0])
    )
    drawn, plain = (np.asarray(Image.open(io.BytesIO(one))).astype(int) for one in (content, bare))
    assert drawn.shape == plain.shape == (256, 256, 3)
    change = np.abs(drawn - plain).sum(axis=2)
    assert (change[60:110, 50:140] > 0).mean() > 0.95 and not change[140:180, 50:140].any()  # the lower half is none
    (artifact,) = TASK.show(signature, source, [found_NR] * len(source), [])
    assert artifact.draw(4).mode == "RGB"  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_true_masks_of_images_are_drawn(describe_run: Any) -> None:
    from mxtrain.vision.detection.box_figure import boxed_samples

    source = open_splits(describe_run(*SMALL).dataset).val
    (sample,) = boxed_samples(source, [2], [predicted()])
    _, _, fact_BF = source.fetch(np.array([2]), seed=0, epoch=0, train=False)
    assert encode_masks(sample.true_masks) == list(fact_BF[0, -1]) and len(sample.true_masks) == len(sample.true_MD)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        ("task=instance_segmentation loss=mask_two_stage", "does not fit what Yolact returns. Type loss=yolact"),
        ("task=instance_segmentation loss=heatmap_focal", "not for task=instance_segmentation. Type loss=yolact"),
        ("task=instance_segmentation model=centernet_fpn", "Type model=yolact"),
        ("task=detection model=yolact", "Type model=centernet_fpn"),
        ("task=detection model=mask_rcnn", "Type model=centernet_fpn"),
        ("task=instance_segmentation model.name=mask_rcnn_resnet50", "Did you mean 'mask_rcnn_resnet50_v1b'"),
        ("task=instance_segmentation model.name=resnet50_v1b", "no instance segmentation network 'resnet50_v1b'"),
        ("task=instance_segmentation dataset=digits", "its samples are for task=classification"),
        ("task=instance_segmentation metric=[accuracy]", "Type metric=[mask_ap50]"),
        ("task=detection metric=[mask_ap]", "Type metric=[voc_ap]"),
        ("task=instance_segmentation loss.label_smoothing=0.1", "Type loss.label_smoothing=0"),
        ("task=instance_segmentation model.mask_stride=3", "model.mask_stride=3"),
        ("task=instance_segmentation dataset=coco dataset.augment.mixup=1", "Type dataset.augment.mixup=0"),
        ("task=instance_segmentation model._target_=mxnet.gluon.nn.Flatten", "heads.base.Detector"),
        ("task=instance_segmentation dataset.image_size=[8,8] dataset.digit_size=[4,8]", "needs images of at least"),
    ],
)
def test_wrong_settings_are_refused(capsys: Any, tmp_path: Path, monkeypatch: Any, words: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*words.split(), "logger=[]"]) == 2
    assert said in capsys.readouterr().err and list(tmp_path.iterdir()) == []
