"""Pose estimation: loss, gradients and predictions against NumPy and GluonCV; what is shown and written; refusals."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mxtrain.cli.dispatch import run
from mxtrain.data.spec import open_splits
from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.types import Batch
from mxtrain.vision.images.affine import transform_points
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.pose.key_points import Crop, KeyPointSet, meta_row
from mxtrain.vision.pose.losses import HeatmapL2
from mxtrain.vision.pose.metrics import Pose
from mxtrain.vision.pose.pose_fpn import PoseFPN
from mxtrain.vision.pose.signature import KeyPointSignature
from mxtrain.vision.pose.task import PoseEstimation

TASK = PoseEstimation(sigma=1.0)
NAMES = ["head", "left_hand", "right_hand"]
POINTS = KeyPointSet([(1, 2)], [(0, 1), (0, 2)], [0.05] * 3)
SIGNATURE = KeyPointSignature(
    (3, 64, 48), class_names=NAMES, category_ids=[7], key_points=POINTS, decoding=Decoding((3, 64, 48))
)
DESCRIPTION: Any = SimpleNamespace(model=PoseFPN(), metric={})
SMALL = (
    "task=pose_estimation",
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


def targets() -> Any:
    """Four objects: all key points known, two, one, none."""
    rng = np.random.RandomState(0)
    point_BJ3 = np.concatenate([rng.rand(4, 3, 2) * [48, 64], np.full((4, 3, 1), 2.0)], axis=2)
    point_BJ3[1, 0, 2], point_BJ3[2, :2, 2], point_BJ3[3, :, 2] = 0, 0, 0
    encode = TASK.build_encode(DESCRIPTION, SIGNATURE, True)
    return encode(point_BJ3.astype(np.float32))


def test_loss_weights_and_gradients_match_numpy() -> None:
    point_BJ3, true_BJhw, weight_BJ = targets()
    rng = np.random.RandomState(1)
    found_BJhw = rng.randn(4, 3, 16, 12).astype(np.float32)
    output = nd.array(found_BJhw)
    output.attach_grad()
    block = HeatmapL2().build(3, True)
    block.hybridize(static_alloc=True)
    with autograd.record():
        loss_B, weight_B = block(output, *map(nd.array, (point_BJ3, true_BJhw, weight_BJ)))
    head_B = np.array([1.0, 2.0, 0.5, 3.0])
    loss_B.backward(nd.array(head_B))
    difference = found_BJhw.astype(np.float64) - true_BJhw
    expected_B = sum(0.5 * weight_BJ[:, j] * (difference[:, j] ** 2).mean(axis=(1, 2)) for j in range(3))
    np.testing.assert_allclose(loss_B.asnumpy(), expected_B, rtol=1e-5)
    assert weight_B.asnumpy().tolist() == [3, 2, 1, 0] and loss_B.asnumpy()[3] == 0
    gradient = difference * (weight_BJ * head_B[:, None])[..., None, None] / (16 * 12)
    np.testing.assert_allclose(output.grad.asnumpy(), gradient, rtol=1e-4, atol=1e-9)


def test_loss_equals_gluoncv_divided_by_the_known_share() -> None:
    """GluonCV's recipe: L2Loss with weights (B, J, 1, 1), divided by the samples of the batch."""
    point_BJ3, true_BJhw, weight_BJ = targets()
    found_BJhw = np.random.RandomState(1).randn(4, 3, 16, 12).astype(np.float32)
    theirs = gluon.loss.L2Loss()(
        nd.array(found_BJhw), nd.array(true_BJhw), nd.array(weight_BJ[..., None, None])
    ).asnumpy()
    loss_B, weight_B = (
        one.asnumpy()
        for one in HeatmapL2().build(3, True)(nd.array(found_BJhw), *map(nd.array, (point_BJ3, true_BJhw, weight_BJ)))
    )
    assert loss_B[0] / weight_B[0] == pytest.approx(theirs[0], rel=1e-5)
    assert loss_B.sum() / weight_B.sum() == pytest.approx(theirs.mean() * (4 * 3) / weight_BJ.sum(), rel=1e-5)


def test_a_batch_without_any_key_point_has_a_finite_loss() -> None:
    point_BJ3, true_BJhw, weight_BJ = (array[3:] for array in targets())
    block = HeatmapL2().build(3, True)
    meter = Meter({}, 3, LossWeights.from_loss(block))
    found = block(nd.ones((1, 3, 16, 12)), *map(nd.array, (point_BJ3, true_BJhw, weight_BJ)))
    sums = meter(*found)
    assert meter.values(sums.asnumpy(), 1) == {"loss": 0.0} and meter.weight(sums).asscalar() == 1.0


def test_predictions_are_in_pixels_of_the_images() -> None:
    """Compares with GluonCV's `get_final_preds`, except for the crop of an object."""
    rng = np.random.RandomState(0)
    map_BJhw = rng.rand(5, 3, 16, 12).astype(np.float32)
    boxes = [np.concatenate([low, low + 20 + 90 * rng.rand(2)]) for low in rng.rand(5, 2) * 200]
    crops = [Crop.around(box, (64, 48), 1.0, 12.0 * number, number == 3) for number, box in enumerate(boxes)]
    score_B = [1.0, 0.5, 0.25, 1.0, 0.1]
    meta = np.stack(
        [
            meta_row(crop, (300, 300), box, 10.0, 4, score, POINTS.sigmas)
            for crop, box, score in zip(crops, boxes, score_B)
        ]
    )
    decode = TASK.build_decode(DESCRIPTION, SIGNATURE)
    found = decode((nd.array(map_BJhw),), Batch((), (), 5, meta=meta)).asnumpy()  # type: ignore[union-attr]
    plain = decode((nd.array(map_BJhw),), Batch((), (), 5)).asnumpy()  # type: ignore[union-attr]
    assert found.shape == plain.shape == (5, 5, 3)
    for prediction, inside, crop, box, score in zip(found, plain, crops, boxes, score_B):
        pose, bare = Pose.from_prediction(prediction), Pose.from_prediction(inside)
        place_J2 = transform_points(pose.point_J3[:, :2], crop.matrix_23)
        np.testing.assert_allclose(place_J2, bare.point_J3[:, :2], atol=1e-3)
        np.testing.assert_array_equal(pose.point_J3[:, 2], bare.point_J3[:, 2])
        np.testing.assert_allclose(pose.box_4, box, rtol=1e-6)
        assert bare.box_4.tolist() == [0, 0, 48, 64]
        assert bare.score == pytest.approx(bare.point_J3[:, 2].mean(), rel=1e-6)
        assert pose.score == pytest.approx(score * bare.score, rel=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gluoncv.data.transforms.pose import get_final_preds
    # Theirs crops out of an image that is as large as what enters the network; pixels are counted by their middles.
    whole = [np.array([[24.0, 32.0]] * 5), np.array([[48.0, 64.0]] * 5)]
    theirs = get_final_preds(nd.array(map_BJhw), *whole)[0].asnumpy()
    peak_BJ = map_BJhw.reshape(5, 3, -1).argmax(axis=2)
    line_BJ, column_BJ = np.divmod(peak_BJ, 12)
    inside_BJ = (column_BJ > 1) & (column_BJ < 11) & (line_BJ > 1) & (line_BJ < 15)
    assert inside_BJ.sum() >= 6
    np.testing.assert_allclose(plain[:, :3, :2][inside_BJ] - 0.5, theirs[inside_BJ], atol=1e-3)


def prediction() -> np.ndarray:
    return np.array([[10.25, 20.5, 0.9], [30.0, 41.0, 0.6], [5.0, 6.0, 0.1], [1, 2, 0.5], [40, 50, 0]], np.float32)


def test_rows_cells_and_results() -> None:
    row = TASK.row(SIGNATURE, prediction(), 3)
    assert row["box"] == [1, 2, 40, 50] and row["score"] == 0.5
    assert row["key_points"]["head"] == pytest.approx([10.25, 20.5, 0.9])  # type: ignore[index,call-overload]
    cells = TASK.prediction_format().cells({"file": "a", **row})
    assert list(cells)[:6] == ["file", "score", "left", "top", "right", "bottom"]
    assert cells["left_hand_y"] == 41.0 and cells["right_hand_score"] == pytest.approx(0.1)
    rows: Any = [{"sample_id": 12, **row}, {"sample_id": "one", **row}]
    first, second = json.loads("".join(TASK.prediction_format().write_as("coco", SIGNATURE, rows)))
    assert (first["image_id"], second["image_id"], first["category_id"], first["score"]) == (12, "one", 7, 0.5)
    assert first["keypoints"] == pytest.approx([9.75, 20, 0.9, 29.5, 40.5, 0.6, 4.5, 5.5, 0.1])
    assert json.loads("".join(TASK.prediction_format().write_as("coco", SIGNATURE, []))) == []


@pytest.mark.slow
def test_a_run_is_evaluated_predicts_and_draws(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    _, result = train_run(*SMALL, *ONE_EPOCH)
    assert {"val/pck", "val/oks_ap"} <= set(result.metrics)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["metric_signatures"]["pck"] == "fraction=0.1,of=longer side of the box"
    assert run(["eval", str(tmp_path / "run"), "split=val"]) == 0
    folder = tmp_path / "run" / "eval" / "val"
    assert {"key_points.csv", "coco.csv", "worst.png"} <= {path.name for path in folder.iterdir()}
    figures = dict(line.split(",") for line in (folder / "coco.csv").read_text().splitlines()[1:])
    measured = json.loads((folder / "metrics.json").read_text())
    assert len(figures) == 10 and float(figures["AP"]) == pytest.approx(measured["oks_ap"])
    lines = [line.split(",") for line in (folder / "key_points.csv").read_text().splitlines()]
    assert [line[0] for line in lines[1:]] == ["top", "bottom", "left", "right", "centre"]
    assert np.mean([float(line[1]) for line in lines[1:]]) == pytest.approx(measured["pck"], abs=1e-6)
    assert run(["eval", str(tmp_path / "run"), "split=val", "corrupt=[blur]", "limit_batches=1"]) == 0
    for name, size in (("wide", (90, 40)), ("high", (20, 50))):
        Image.fromarray(np.full((size[1], size[0], 3), 90, np.uint8)).save(tmp_path / f"{name}.png")
    capsys.readouterr()
    words = [str(tmp_path / "wide.png"), str(tmp_path / "high.png")]
    assert run(["predict", str(tmp_path / "run"), *words, f"folder={tmp_path / 'drawn'}"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    drawn = [Image.open(io.BytesIO(Path(row["picture"]).read_bytes())) for row in rows]
    assert [image.size[0] % width for image, width in zip(drawn, (90, 20))] == [0, 0]
    assert [image.size[0] / image.size[1] for image in drawn] == [90 / 40, 20 / 50]
    assert [row["box"] for row in rows] == [[0, 0, 90, 40], [0, 0, 20, 50]]
    # One by one is the same as together, and a file that cannot be read is left out.
    (tmp_path / "bad.png").write_bytes(b"none")
    words = [str(tmp_path / "bad.png"), words[1], "dataset.eval_batch_size=1"]
    assert run(["predict", str(tmp_path / "run"), *words]) == 2
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), *words, "skip_unreadable=true"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["key_points"] == rows[1]["key_points"] and "picture" not in alone
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "found.jsonl"), words[1]]) == 2
    assert "Predict for one of both at a time." in capsys.readouterr().err


@pytest.mark.slow
def test_images_show_key_points_at_their_positions(describe_run: Any) -> None:
    source = open_splits(describe_run(*SMALL).dataset).val
    names = ["top", "bottom", "left", "right", "centre"]
    signature = KeyPointSignature((3, 32, 32), class_names=names, key_points=POINTS, decoding=Decoding((3, 32, 32)))
    found = np.concatenate([np.random.RandomState(0).rand(10, 7, 3) * 30])
    found[:, :, 2] = 0.9
    (artifact,) = TASK.show(signature, source, found, [])  # type: ignore[arg-type]
    few, many = artifact.draw(2), artifact.draw(6)  # type: ignore[union-attr]
    assert few.mode == "RGB" and many.height > few.height
    from mxtrain.vision.pose.pose_figure import draw_points

    image = Image.new("RGB", (200, 200))
    point_J3 = np.array([[10.0, 10, 1], [40, 30, 1], [30, 45, 1]])
    draw_points(image, point_J3, np.array([True, True, False]), SIGNATURE, 4.0)
    pixels = np.asarray(image).astype(int).sum(axis=2)
    assert pixels[40, 40] > 0 and pixels[120, 160] > 0 and pixels[180, 120] == 0  # the third is not sure enough
    assert pixels[80, 100] > 0  # on the line between the first two


def test_the_highest_scoring_key_point_is_explained(describe_run: Any) -> None:
    point_BJ3, true_BJhw, weight_BJ = targets()
    output = true_BJhw * np.array([0.5, 0.9, 0.7])[None, :, None, None]
    batch = Batch((), tuple(map(nd.array, (point_BJ3, true_BJhw, weight_BJ))), 4)
    explained = TASK.explained(DESCRIPTION, SIGNATURE, (nd.array(output),), batch)
    assert list(explained.predicted[:3]) == ["left_hand", "left_hand", "right_hand"]
    assert list(explained.true) == ["left_hand", "left_hand", "right_hand", ""]
    assert explained.is_right_B.tolist() == [True, True, True, False]
    np.testing.assert_allclose(explained.score((nd.array(output),)).asnumpy()[:3], [0.9, 0.9, 0.7], rtol=1e-5)
    # The place stays chosen, whatever comes.
    np.testing.assert_allclose(explained.score((nd.array(output * 0 + 3),)).asnumpy(), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        ("task=pose_estimation loss=l2", "not for task=pose_estimation. Type loss=heatmap_l2"),
        ("task=pose_estimation model=lenet", "Type model=pose_fpn"),
        ("task=pose_estimation model._target_=mxnet.gluon.nn.Flatten", "mxtrain.vision.pose.model.PoseNetwork"),
        ("task=pose_estimation model=fpn", "Type model=pose_fpn"),
        ("task=pose_estimation dataset=digits", "its samples are for task=classification"),
        ("task=pose_estimation metric=[accuracy]", "Type metric=[pck]"),
        ("task=pose_estimation loss.label_smoothing=0.1", "Type loss.label_smoothing=0"),
        ("task=pose_estimation task.sigma=0", "task.sigma=0"),
        ("task=pose_estimation metric.oks_ap.sigmas=[0.1,0.2]", "has 2 numbers, and there are 5 key points: top"),
        ("task=pose_estimation dataset.augment.rotate=91", "dataset.augment.rotate=91"),
        ("task=pose_estimation dataset.sampler=balanced", "Type dataset.sampler=shuffle"),
    ],
)
def test_wrong_settings_are_refused(capsys: Any, tmp_path: Path, monkeypatch: Any, words: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*words.split(), "logger=[]"]) == 2
    assert said in capsys.readouterr().err and list(tmp_path.iterdir()) == []
