"""Detection: targets, loss, gradients and predictions against NumPy; what is shown and written; what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Tuple

import numpy as np
import pytest
from PIL import Image

from mxtrain.cli.dispatch import run
from mxtrain.data.spec import open_splits
from mxtrain.engine.backend import autograd, nd
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.optimizer.clipping import multiply
from mxtrain.training.step import division_by_weight
from mxtrain.types import Batch
from mxtrain.vision.detection.box_table import BoxTable
from mxtrain.vision.detection.boxed_images import BoxedImages
from mxtrain.vision.detection.boxes import Flag, padded, rows_of
from mxtrain.vision.detection.heads.heatmap import HeatmapCoding
from mxtrain.vision.detection.losses import HeatmapFocal
from mxtrain.vision.detection.signature import BoxSignature
from mxtrain.vision.detection.task import Detection
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.settings import Decoding

TASK = Detection()
NAMES = ["cat", "dog", "cow"]
SHAPE = (3, 32, 40)
SIGNATURE = BoxSignature(SHAPE, class_names=NAMES, category_ids=[3, 5, 8], decoding=Decoding(SHAPE))
CODING = HeatmapCoding(3, SHAPE, max_detections=20)
SMALL = (
    "task=detection",
    "dataset.image_size=[32,32]",
    "dataset.digit_size=[12,20]",
    "dataset.num_train=24",
    "dataset.num_val=10",
    "dataset.batch_size=8",
    "dataset.eval_batch_size=4",
    "model.channels=[8,16]",
    "model.width=8",
)
ONE_EPOCH = ("trainer.max_epochs=1", "trainer.limit_train_batches=2")


def boxes() -> np.ndarray:
    """Four images: three objects, of which one at the edge; one object; a crowd beside one; none."""
    first = rows_of([[2, 3, 13, 12], [20, 8, 34, 30], [36, 0, 40, 7]], [0, 2, 1])
    crowd = rows_of([[0, 0, 30, 30], [8, 8, 16, 24]], [1, 1])
    crowd[0, 5] = float(Flag.CROWD)
    return padded([first, rows_of([[5.5, 6.5, 9.5, 30.5]], [1]), crowd, np.zeros((0, 7))], 4)


def test_targets_match_object_positions() -> None:
    """Against the definition, cell by cell."""
    box_BMD = boxes()
    score, size, is_centre = CODING.encode(box_BMD)
    for image, class_, line, column in np.ndindex(4, 3, 8, 10):
        expected = 0.0
        for left, top, right, bottom, number, flags, _ in box_BMD[image].astype(float):
            if number != class_ or flags:
                continue
            x, y = int((left + right) / 8), int((top + bottom) / 8)
            sigma = np.sqrt((right - left) / 4 * (bottom - top) / 4) / 6
            away = max(abs(line - y), abs(column - x))
            if away <= int(3 * sigma):
                expected = max(expected, np.exp(-((line - y) ** 2 + (column - x) ** 2) / (2 * sigma**2)))
        assert score[image, class_, line, column] == pytest.approx(expected, abs=1e-6)
    assert (score == 1).sum() == is_centre.sum() == 5 and is_centre[3].sum() == 0
    np.testing.assert_allclose(size[1, :, 4, 1], [1.0, 6.0, 7.5 / 4 - 1, 18.5 / 4 - 4], atol=1e-6)


def test_decoding_inverts_encoding() -> None:
    score, size, _ = CODING.encode(boxes())
    logit = np.log(np.maximum(score, 1e-4) / np.maximum(1 - score, 1e-4))
    found = CODING.decode((nd.array(logit), nd.array(size))).asnumpy()
    assert found.shape == (4, 20, 6)
    for image, expected in enumerate(([0, 1, 2], [0], [1])):
        true = boxes()[image][expected]
        sure = found[image][found[image, :, 1] > 0.9]
        assert len(sure) == len(expected)
        order = np.lexsort((sure[:, 2],))
        np.testing.assert_allclose(sure[order][:, 2:], true[np.lexsort((true[:, 0],)), :4], atol=1e-4)
        np.testing.assert_array_equal(sure[order][:, 0], true[np.lexsort((true[:, 0],)), 4])
    assert (found[3, :, 1] < 1e-3).all() and (np.diff(found[:, :, 1], axis=1) <= 0).all()


def loss_of(logit: np.ndarray, size: np.ndarray, targets: Tuple[np.ndarray, ...]) -> np.ndarray:
    """The loss of each image, in float64."""
    score, true_size, is_centre = targets
    p = 1 / (1 + np.exp(-logit.astype(np.float64)))
    focal = np.where(score >= 1, (1 - p) ** 2 * np.log(p), (1 - score) ** 4 * p**2 * np.log(1 - p))
    difference = np.abs(size - true_size) * is_centre
    return (
        -focal.sum(axis=(1, 2, 3)) + 0.1 * difference[:, :2].sum(axis=(1, 2, 3)) + difference[:, 2:].sum(axis=(1, 2, 3))
    )


def test_loss_weights_and_gradients_match_numpy() -> None:
    rng, targets = np.random.RandomState(0), CODING.encode(boxes())
    logit, size = rng.randn(4, 3, 8, 10).astype(np.float32), rng.rand(4, 4, 8, 10).astype(np.float32) * 5
    block = HeatmapFocal().build_detection(3)
    block.hybridize(static_alloc=True)
    outputs = [nd.array(logit), nd.array(size)]
    for output in outputs:
        output.attach_grad()
    with autograd.record():
        loss_B, weight_B = block(*outputs, nd.array(boxes()), *map(nd.array, targets))
    head = np.array([1.0, 2.0, 1.0, 3.0])
    loss_B.backward(nd.array(head))
    np.testing.assert_allclose(loss_B.asnumpy(), loss_of(logit, size, targets), rtol=1e-5)
    np.testing.assert_array_equal(weight_B.asnumpy(), [3, 1, 1, 0])
    for number, values in enumerate((logit, size)):
        gradient = outputs[number].grad.asnumpy()
        for place in [tuple(rng.randint(0, n) for n in values.shape) for _ in range(60)]:
            moved = []
            for step in (1e-4, -1e-4):
                changed = [logit.astype(np.float64), size.astype(np.float64)]
                changed[number][place] += step
                moved.append((head * loss_of(changed[0], changed[1], targets)).sum())
            assert gradient[place] == pytest.approx((moved[0] - moved[1]) / 2e-4, rel=2e-3, abs=1e-4)


@pytest.mark.parametrize("sure", [60.0, -60.0])
def test_confident_wrong_network_has_a_finite_loss(sure: float) -> None:
    targets = CODING.encode(boxes())
    logit = nd.full((4, 3, 8, 10), sure)
    logit.attach_grad()
    block = HeatmapFocal().build_detection(3)
    with autograd.record():
        loss_B, _ = block(logit, nd.zeros((4, 4, 8, 10)), nd.array(boxes()), *map(nd.array, targets))
    loss_B.backward()
    assert np.isfinite(loss_B.asnumpy()).all() and np.isfinite(logit.grad.asnumpy()).all()


def test_empty_batch_normalisation() -> None:
    block = HeatmapFocal().build_detection(3)
    meter = Meter({}, 3, LossWeights.from_loss(block))
    gradient = nd.array([6.0])
    for weights, expected in (([3.0, 1.0, 0.0], 6.0 * 3 / 4), ([0.0, 0.0, 0.0], 6.0 * 3)):
        sums = meter(nd.array([1.0, 1.0, 1.0]), nd.array(weights))
        one = gradient.copy()
        multiply([one], division_by_weight(meter.weight(sums), 3))
        assert one.asscalar() == pytest.approx(expected)
        assert meter.values(sums.asnumpy(), 3)["loss"] == pytest.approx(3 / max(sum(weights), 1))


def test_detections_are_in_the_pixels_of_the_image(describe_run: Any) -> None:
    description = describe_run("task=detection")
    decode = TASK.build_decode(description, SIGNATURE)
    score, size, _ = HeatmapCoding(3, SHAPE).encode(boxes()[:2])
    outputs = tuple(map(nd.array, (np.where(score >= 1, 5.0, -9.0), size)))
    plain = decode(outputs, Batch((), (), 2)).asnumpy()
    meta = np.array([[64, 160, 32, 40], [16, 40, 16, 40]])  # the second was not resized, and padded below
    own = decode(outputs, Batch((), (), 2, meta=meta)).asnumpy()
    np.testing.assert_allclose(own[0, :3, 2:], plain[0, :3, 2:] * [4, 2, 4, 2], atol=1e-3)
    np.testing.assert_allclose(own[1, 0, 2:], [*plain[1, 0, 2:5], 16], atol=1e-3)  # nothing lies outside of it


def test_rows_and_other_forms_of_a_prediction() -> None:
    found = np.array([[2, 0.9, 1, 2, 11.5, 22], [0, 0.31, 0, 0, 5, 5], [1, 0.2, 0, 0, 9, 9], [-1, 0, 0, 0, 0, 0]])
    row = TASK.row(SIGNATURE, found, 1)
    assert row == {
        "found": [
            {"class": "cow", "score": 0.9, "box": [1, 2, 11.5, 22]},
            {"class": "cat", "score": 0.31, "box": [0, 0, 5, 5]},
        ]
    }
    assert TASK.prediction_format().cells(row) == {
        "count": 2,
        "class": "cow",
        "score": 0.9,
        "left": 1,
        "top": 2,
        "right": 11.5,
        "bottom": 22,
    }
    assert TASK.prediction_format().cells({"found": []})["count"] == 0
    rows: Any = [{"sample_id": 42, **row}, {"sample_id": "b", "found": []}, {"sample_id": "c", **row}]
    results = json.loads("".join(TASK.prediction_format().write_as("coco", SIGNATURE, rows)))
    assert results[0] == {"image_id": 42, "category_id": 8, "bbox": [1, 2, 10.5, 20], "score": 0.9}
    assert [one["image_id"] for one in results] == [42, 42, "c", "c"]
    assert json.loads("".join(TASK.prediction_format().write_as("coco", SIGNATURE, []))) == []


def test_image_and_boxes_are_fitted_together(tmp_path: Path) -> None:
    """A white rectangle on black stays where its box says, stretched and padded."""
    image = np.zeros((30, 60, 3), np.uint8)
    image[10:20, 12:48] = 255
    Image.fromarray(image).save(tmp_path / "a.png")
    for fit in ("stretch", "pad"):
        table = BoxTable.grouped(np.zeros(1, np.int64), rows_of([[12, 10, 48, 20]], [0]), 1)
        source = BoxedImages(ImageFiles([tmp_path / "a.png"]), table, Decoding((3, 45, 45), fit=fit), [0.0] * 3)
        (image_CHW,), (box_MD,), meta = source.fetch(np.array([0]), seed=0, epoch=0, train=False)
        is_white = image_CHW[0] > 127
        edges = [
            is_white.any(axis=0).argmax(),
            is_white.any(axis=1).argmax(),
            45 - is_white.any(axis=0)[::-1].argmax(),
            45 - is_white.any(axis=1)[::-1].argmax(),
        ]
        np.testing.assert_allclose(box_MD[0, :4], edges, atol=1)
        assert meta.tolist() == [[30, 60, 45, 45] if fit == "stretch" else [30, 60, 22, 45]]


@pytest.mark.slow
def test_boxes_of_scenes_are_around_the_ink(describe_run: Any) -> None:
    """For a single digit this is the bounding box of the scene's mask."""
    words = ("dataset.digits=[1,1]", "dataset.num_val=40")
    described = [describe_run(f"task={task}", *words) for task in ("segmentation", "detection")]
    masks, found = (open_splits(description.dataset).val for description in described)
    index = np.arange(40)
    image_BCHW, mask_BHW, _ = masks.fetch(index, seed=0, epoch=0, train=False)
    same_BCHW, box_BMD, _ = found.fetch(index, seed=0, epoch=0, train=False)
    np.testing.assert_array_equal(image_BCHW, same_BCHW)
    for mask_HW, (row,) in zip(mask_BHW, box_BMD):
        rows, columns = np.flatnonzero((mask_HW > 0).any(axis=1)), np.flatnonzero((mask_HW > 0).any(axis=0))
        assert row[:4].tolist() == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert row[4] == mask_HW.max() - 1 and row[6] == (row[2] - row[0]) * (row[3] - row[1])


@pytest.mark.slow
def test_a_run_is_evaluated_predicts_and_draws(
    train_run: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, result = train_run(*SMALL, *ONE_EPOCH, "metric=[voc_ap,coco_ap]")
    assert {"val/voc_ap", "val/coco_ap"} <= set(result.metrics)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["metric_signatures"]["voc_ap"] == "VOC,iou=0.5,interpolation=area"
    decode, sizes = HeatmapCoding.decode, []
    with monkeypatch.context() as patch:
        patch.setattr(HeatmapCoding, "decode", lambda own, out: sizes.append(len(out[0])) or decode(own, out))
        assert run(["eval", str(tmp_path / "run"), "split=val"]) == 0
    assert sizes == [4, 4, 2]  # once for metrics and report
    folder = tmp_path / "run" / "eval" / "val"
    assert {"classes.csv", "coco.csv", "curves.png", "mistakes.png"} <= {path.name for path in folder.iterdir()}
    figures = dict(line.split(",") for line in (folder / "coco.csv").read_text().splitlines()[1:])
    measured = json.loads((folder / "metrics.json").read_text())
    assert len(figures) == 12 and figures["AP large"] == ""  # nothing of that size is there
    assert float(figures["AP"]) == pytest.approx(measured["coco_ap"])
    for name, size in (("wide", (90, 40)), ("high", (20, 50))):
        Image.fromarray(np.full((size[1], size[0], 3), 90, np.uint8)).save(tmp_path / f"{name}.png")
    capsys.readouterr()
    words = [str(tmp_path / "wide.png"), str(tmp_path / "high.png"), "task.score_threshold=0"]
    assert run(["predict", str(tmp_path / "run"), *words, f"folder={tmp_path / 'drawn'}"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    drawn = [Image.open(io.BytesIO(Path(row["picture"]).read_bytes())) for row in rows]
    assert [image.size for image in drawn] == [(270, 120), (120, 300)]  # small ones are enlarged
    for row, (width, height) in zip(rows, ((90, 40), (20, 50))):
        edges = np.array([one["box"] for one in row["found"]])
        assert len(edges) and (edges >= 0).all() and (edges[:, [0, 2]] <= width).all()
        assert (edges[:, [1, 3]] <= height).all()
    # One by one is the same as together.
    assert run(["predict", str(tmp_path / "run"), words[1], words[2], "dataset.eval_batch_size=1"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["found"] == rows[1]["found"] and "picture" not in alone


@pytest.mark.slow
def test_predicted_images_are_never_overwritten(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    train_run(*SMALL, *ONE_EPOCH)
    for name in ("a/7.png", "b/007.jpg", "b/c.jpg", "b/c.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "photos" / name)
    photos, before = tmp_path / "photos", {path: path.read_bytes() for path in tmp_path.rglob("photos/*/*")}
    for words, said in (
        ([f"folder={photos}"], "a/7.png' would be written, and it is one of the files to predict for"),
        ([f"output={photos / 'b/c.jpg'}"], "b/c.jpg' would be written"),
        (["format=coco"], "would both have the image_id 7"),
    ):
        assert run(["predict", str(tmp_path / "run"), str(photos), *words]) == 2
        assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("photos/*/*")} == before
    drawn = tmp_path / "drawn"
    assert run(["predict", str(tmp_path / "run"), str(photos), f"folder={drawn}"]) == 0
    names = sorted(str(path.relative_to(drawn)) for path in drawn.rglob("*.png"))
    assert names == ["a/7.png", "b/007.png", "b/c.png", "b/c.png.png"]  # as the images lie


@pytest.mark.slow
def test_images_of_mistakes_and_detections(describe_run: Any) -> None:
    source = open_splits(describe_run(*SMALL).dataset).val
    rng = np.random.RandomState(0)
    found = [
        np.column_stack([rng.randint(0, 10, 5), rng.rand(5), rng.rand(5, 2) * 9, 12 + rng.rand(5, 2) * 19])
        for _ in range(len(source))
    ]
    signature = SimpleNamespace(class_names=[str(k) for k in range(10)])
    (artifact,) = TASK.show(signature, source, found, [])  # type: ignore[arg-type]
    few, many = artifact.draw(2), artifact.draw(6)  # type: ignore[union-attr]
    assert few.mode == "RGB" and many.height > few.height
    content = TASK.prediction_format().encode_file(signature, found[0], source, 0)  # type: ignore[arg-type]
    plain = TASK.prediction_format().encode_file(signature, found[0][:0], source, 0)  # type: ignore[arg-type]
    drawn, bare = (np.asarray(Image.open(io.BytesIO(one))).astype(int) for one in (content, plain))
    assert drawn.shape == bare.shape == (256, 256, 3) and np.abs(drawn - bare).max() > 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        ("task=detection loss=softmax_cross_entropy", "not for task=detection. Type loss=heatmap_focal"),
        ("task=detection model=lenet", "Type model=centernet_fpn"),
        ("task=detection dataset=digits", "its samples are for task=classification"),
        ("task=detection metric=[accuracy]", "Type metric=[voc_ap]"),
        ("task=detection loss.label_smoothing=0.1", "Type loss.label_smoothing=0"),
        ("task=detection task.score_threshold=2", "task.score_threshold=2"),
        ("task=detection model.chanels=[8,16]", "Did you mean 'model.channels'?"),
        ("task=detection dataset.image_size=[8,8] dataset.digit_size=[4,8]", "needs images of at least 16x16"),
    ],
)
def test_wrong_settings_are_refused(capsys: Any, tmp_path: Path, monkeypatch: Any, words: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*words.split(), "logger=[]"]) == 2
    assert said in capsys.readouterr().err and list(tmp_path.iterdir()) == []
