"""Segmentation: loss, gradients, metrics and predictions against NumPy; what is shown and written; what is refused."""

from __future__ import annotations

import csv
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
from mxtrain.engine.backend import autograd, nd
from mxtrain.errors import ConfigError
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.types import Batch
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.segmentation.losses import PixelSoftmaxCrossEntropy
from mxtrain.vision.segmentation.mask_figure import palette
from mxtrain.vision.segmentation.metrics import MeanIoU, PixelAccuracy
from mxtrain.vision.segmentation.signature import MaskSignature
from mxtrain.vision.segmentation.task import Segmentation

TASK = Segmentation()
NAMES = ["background", "cat", "dog", "cow"]
DECODING = Decoding((3, 4, 6))
SIGNATURE = MaskSignature((3, 4, 6), class_names=NAMES, mask_values=[0, 7, 9, 200], decoding=DECODING)
SMALL = (
    "task=segmentation",
    "dataset.image_size=[16,16]",
    "dataset.digit_size=[8,12]",
    "dataset.num_train=24",
    "dataset.num_val=10",
    "dataset.batch_size=8",
    "dataset.eval_batch_size=4",
    "model.channels=[8,16]",
    "model.width=8",
)


def draw(shape: Any, seed: int = 0) -> Any:
    return np.random.RandomState(seed).randn(*shape)


def loss_and_gradient(logits_BKHW: Any, mask_BHW: Any, weight_K: Any, smoothing: float) -> Any:
    """Sums of weighted loss and of weights of each sample, and the first's gradient, pixel by pixel in NumPy."""
    shifted = logits_BKHW - logits_BKHW.max(axis=1, keepdims=True)
    p_BKHW = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    loss_B, weight_B, gradient = np.zeros(len(mask_BHW)), np.zeros(len(mask_BHW)), np.zeros_like(logits_BKHW)
    for b, y, x in np.ndindex(*mask_BHW.shape):
        k = mask_BHW[b, y, x]
        if k < 0:
            continue
        target_K = np.full(len(weight_K), smoothing / len(weight_K))
        target_K[k] += 1 - smoothing
        loss_B[b] -= weight_K[k] * (target_K * np.log(p_BKHW[b, :, y, x])).sum()
        weight_B[b] += weight_K[k]
        gradient[b, :, y, x] = weight_K[k] * (p_BKHW[b, :, y, x] - target_K)
    return loss_B, weight_B, gradient


@pytest.mark.parametrize("weights", [{}, {"background": 0.25, "dog": 3.0, "cow": 0.0}], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_weights_and_gradients_match_numpy(weights: Any, smoothing: float) -> None:
    main, aux = draw((3, 4, 4, 6)), draw((3, 4, 4, 6), 1)
    mask = np.random.RandomState(2).randint(-1, 4, (3, 4, 6))
    mask[1] = -1  # nothing in it counts
    weight_K = np.array([weights.get(name, 1.0) for name in NAMES])
    spec = PixelSoftmaxCrossEntropy(class_weights=weights, aux_weight=0.3, label_smoothing=smoothing)
    block = spec.build_for(NAMES, {}, training=True)
    block.hybridize(static_alloc=True)
    outputs = [nd.array(main), nd.array(aux)]
    for output in outputs:
        output.attach_grad()
    with autograd.record():
        loss_B, weight_B = block(*outputs, nd.array(mask))
    loss_B.backward(nd.array([1.0, 1.0, 2.0]))  # a gradient that comes from behind counts
    of_main, of_aux = (loss_and_gradient(one, mask, weight_K, smoothing) for one in (main, aux))
    np.testing.assert_allclose(loss_B.asnumpy(), of_main[0] + 0.3 * of_aux[0], rtol=1e-5)
    np.testing.assert_allclose(weight_B.asnumpy(), of_main[1], rtol=1e-6)
    assert weight_B.asnumpy()[1] == 0
    head = np.array([1.0, 1.0, 2.0])[:, None, None, None]
    np.testing.assert_allclose(outputs[0].grad.asnumpy(), head * of_main[2], atol=1e-5)
    np.testing.assert_allclose(outputs[1].grad.asnumpy(), 0.3 * head * of_aux[2], atol=1e-5)
    # Without training neither auxiliary outputs nor smoothing count.
    measured_B, _ = spec.build_for(NAMES, {}, training=False)(*outputs, nd.array(mask))
    np.testing.assert_allclose(measured_B.asnumpy(), loss_and_gradient(main, mask, weight_K, 0.0)[0], rtol=1e-5)


@pytest.mark.parametrize(
    "weights, said",
    [
        ({"bakground": 0.1}, "there is no class 'bakground'. Did you mean 'background'? They are: background, cat"),
        (dict.fromkeys(NAMES, 0.0), "at least one class must weigh more than 0"),
    ],
    ids=str,
)
def test_weights_of_classes_that_cannot_be_are_refused(weights: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PixelSoftmaxCrossEntropy(class_weights=weights).build_for(NAMES, {}, training=True)
    assert said in str(caught.value)


def test_metrics_match_counted_pixels() -> None:
    """Over two batches, with ignored pixels and a class that is nowhere."""
    metrics = {"left_out": MeanIoU(), "zero": MeanIoU(absent_classes="zero"), "accuracy": PixelAccuracy()}
    meter = Meter(metrics, 4, LossWeights(True))
    right, total, shared_K, union_K = 0, 0, np.zeros(4), np.zeros(4)
    sums = np.zeros(meter.width)
    for seed in (0, 1):
        logits = draw((2, 4, 5, 6), seed)
        logits[:, 3] = -9
        mask = np.random.RandomState(seed + 5).randint(-1, 3, (2, 5, 6))
        sums += meter(nd.ones(2), nd.ones(2), nd.array(logits), nd.array(mask)).asnumpy()
        found, counts = logits.argmax(axis=1), mask >= 0
        right, total = right + (found == mask)[counts].sum(), total + counts.sum()
        for k in range(4):
            shared_K[k] += ((found == k) & (mask == k)).sum()
            union_K[k] += (((found == k) | (mask == k)) & counts).sum()
    values = meter.values(sums, 4)
    assert union_K[3] == 0 and 0 < right < total
    assert values["accuracy"] == pytest.approx(right / total, abs=1e-9)
    assert values["left_out"] == pytest.approx((shared_K[:3] / union_K[:3]).mean(), abs=1e-9)
    assert values["zero"] == pytest.approx((shared_K[:3] / union_K[:3]).sum() / 4, abs=1e-9)
    assert MeanIoU().signature != MeanIoU(absent_classes="zero").signature


def test_a_prediction_is_as_large_as_its_image() -> None:
    logits = draw((3, 4, 8, 8))
    meta = np.array([[8, 8, 8, 8], [5, 7, 5, 7], [16, 12, 8, 6]])
    found = TASK.decode((nd.array(logits),), Batch((), (), 3, meta=meta))
    assert [one.shape for one in found] == [(8, 8), (5, 7), (16, 12)]
    np.testing.assert_array_equal(found[0].asnumpy(), logits[0].argmax(axis=0))
    np.testing.assert_array_equal(found[1].asnumpy(), logits[1, :, :5, :7].argmax(axis=0))
    # Enlarged linearly: the middles of pixels keep their places.
    at_y, at_x = ((np.arange(n) + 0.5) / 2 - 0.5 for n in (16, 12))
    rows = np.array([[np.interp(at_y, range(8), logits[2, k, :, x]) for x in range(6)] for k in range(4)])
    wide = np.array([[np.interp(at_x, range(6), rows[k, :, y]) for y in range(16)] for k in range(4)])
    np.testing.assert_array_equal(found[2].asnumpy(), wide.argmax(axis=0))
    same = TASK.decode((nd.array(logits),), Batch((), (), 3, meta=np.array([[8, 7, 8, 7]] * 3)))
    np.testing.assert_array_equal(same.asnumpy(), logits[:, :, :, :7].argmax(axis=1))


def test_rows_and_files_of_a_prediction() -> None:
    prediction = np.array([[0, 0, 3], [2, 0, 3]], np.float32)
    row = TASK.row(SIGNATURE, prediction, 1)
    assert row == {"height": 2, "width": 3, "shares": {"background": 0.5, "cow": 0.333333, "dog": 0.166667}}
    assert TASK.prediction_format().cells({**row, "mask": "m.png"}) == {
        "height": 2,
        "width": 3,
        "mask": "m.png",
        "largest_class": "background",
        "share": 0.5,
    }
    image = Image.open(io.BytesIO(TASK.prediction_format().encode_file(SIGNATURE, prediction, [], 0)))
    assert image.mode == "P"
    np.testing.assert_array_equal(np.asarray(image), [[0, 0, 200], [9, 0, 200]])
    assert image.convert("RGB").getpixel((0, 1)) == tuple(palette(256)[9])
    wide = MaskSignature((3, 4, 6), class_names=["a", "b"], mask_values=[300, 40000], decoding=DECODING)
    image = Image.open(io.BytesIO(TASK.prediction_format().encode_file(wide, np.array([[0, 1]]), [], 0)))
    np.testing.assert_array_equal(np.asarray(image), [[300, 40000]])


def test_palette_equals_voc() -> None:
    """Background, aeroplane, bicycle, person and the white of ignored pixels, as published."""
    table = palette(256)
    assert [tuple(table[k]) for k in (0, 1, 2, 15, 255)] == [
        (0, 0, 0),
        (128, 0, 0),
        (0, 128, 0),
        (192, 128, 128),
        (224, 224, 192),
    ]


@pytest.mark.slow
def test_scenes_to_test_with_show_digits_of_their_own(describe_run: Any) -> None:
    overrides = ["task=segmentation", "dataset.num_train=1", "dataset.num_val=3"]
    assert open_splits(describe_run(*overrides).dataset).test is None
    splits = open_splits(describe_run(*overrides, "dataset.test_fraction=0.1").dataset)
    held_out = [{ink.tobytes() for ink in source._ink_NGG} for source in (splits.train, splits.val, splits.test)]
    assert len(splits.test) == 3 and 0 < len(held_out[2]) < len(held_out[1])
    assert not held_out[2] & (held_out[0] | held_out[1])


@pytest.mark.slow
def test_scenes_are_a_function_of_seed_epoch_and_index(describe_run: Any) -> None:
    splits = open_splits(describe_run("task=segmentation").dataset)
    many = np.arange(40)
    image, mask, sizes = splits.train.fetch(many, seed=3, epoch=2, train=True)
    for order in (many[::-1], np.array([11])):
        again = splits.train.fetch(order, seed=3, epoch=2, train=True)
        for one, other in zip((image, mask, sizes), again):
            np.testing.assert_array_equal(one[order], other)
    assert image.dtype == np.uint8 and mask.min() == 0 and mask.max() <= 10
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 1}):
        assert (splits.train.fetch(many, train=True, **other)[1] != mask).any()
    still = [splits.val.fetch(many, seed=seed, epoch=seed, train=False)[0] for seed in (0, 1)]
    np.testing.assert_array_equal(*still)
    # A digit is drawn in one colour over the photograph; its pixels are those of the mask.
    assert all(1 <= len(set(np.unique(one)) - {0}) <= 2 for one in mask)
    assert {int(k) for k in np.unique(mask)} == set(range(11))


def test_no_digit_and_no_part_of_a_photograph_is_in_training_and_in_validation(describe_run: Any) -> None:
    splits = open_splits(describe_run("task=segmentation").dataset)
    train, val = ({one.tobytes() for one in source._ink_NGG} for source in (splits.train, splits.val))
    assert len(train & val) <= 1 and len(train) > 1400 and len(val) > 300  # two people may draw the same 64 pixels
    for left, right in zip(splits.train._photos, splits.val._photos):
        assert left.shape == right.shape and not np.array_equal(left, right)


@pytest.mark.slow
def test_eval_and_predict_agree_and_show(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    """Masks of a file each, of the images' own size, agree with what eval counted, and with the checkpoint alone."""
    made, _ = train_run(*SMALL, "trainer.max_epochs=1")
    run_dir, photos = tmp_path / "run", tmp_path / "photos"
    source = made.runner.context.data.val.source
    image_BCHW, true_BHW, _ = source.fetch(np.arange(10), seed=0, epoch=0, train=False)
    photos.mkdir()
    for number, image in enumerate(image_BCHW):
        Image.fromarray(image.transpose(1, 2, 0)).save(photos / f"{number}.png")
    assert run(["predict", str(run_dir), str(photos), f"output={tmp_path}/p.jsonl", f"folder={tmp_path}/masks"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [Path(row["mask"]).name for row in rows] == [f"{number}.png" for number in range(10)]
    found_BHW = np.stack([np.asarray(Image.open(io.BytesIO(Path(row["mask"]).read_bytes()))) for row in rows])
    assert run(["eval", str(run_dir), "split=val"]) == 0
    measured = json.loads((run_dir / "eval" / "val" / "metrics.json").read_text())
    assert measured["pixel_accuracy"] == pytest.approx((found_BHW == true_BHW).mean(), abs=1e-9)
    confusion = list(csv.reader((run_dir / "eval" / "val" / "confusion.csv").read_text().splitlines()))
    counted = np.array([row[1:] for row in confusion[1:]], int)
    expected = np.zeros((11, 11), int)
    np.add.at(expected, (true_BHW.ravel(), found_BHW.ravel()), 1)
    np.testing.assert_array_equal(counted, expected)
    with Image.open(run_dir / "eval" / "val" / "worst.png") as shown:
        assert shown.mode == "RGB" and shown.width > 300
    # An image larger than the frame: its mask is as large as it is.
    Image.fromarray(np.zeros((50, 30, 3), np.uint8)).save(tmp_path / "tall.jpg")
    capsys.readouterr()
    assert run(["predict", str(run_dir), str(tmp_path / "tall.jpg"), "format=csv"]) == 0
    header, line = csv.reader(capsys.readouterr().out.splitlines())
    row = dict(zip(header, line))
    assert (row["height"], row["width"]) == ("50", "30") and row["mask"] == str(run_dir / "predict" / "tall.png")
    with Image.open(row["mask"]) as mask:
        assert mask.size == (30, 50)


@pytest.mark.slow
def test_files_of_the_same_name_do_not_replace_each_other(train_run: Any, tmp_path: Path) -> None:
    train_run(*SMALL, "trainer.max_epochs=1", "trainer.limit_train_batches=1")
    for name in ("a/x.png", "b/x.png", "b/x.jpg", "b/X.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / name)
    words = [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "a")]
    assert run(["predict", str(tmp_path / "run"), *words, f"folder={tmp_path}/masks", f"output={tmp_path}/p"]) == 0
    masks = [json.loads(line)["mask"] for line in (tmp_path / "p").read_text().splitlines()]
    assert len(masks) == 5 and len({mask.lower() for mask in masks}) == 5
    assert sorted(map(str, (tmp_path / "masks").rglob("*.png"))) == sorted(masks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        (["loss._target_=mxnet.gluon.loss.SoftmaxCELoss"], "would count ignored pixels, whose label is -1"),
        (["loss=l2", "loss._target_=own_losses.plain", "loss.label_smoothing=0.1"], "cannot be smoothed"),
        (["model=lenet"], "task=segmentation and the model LeNet do not fit"),
        (["metric=[accuracy]"], "Type metric=[mean_iou]"),
        (["loss=l2"], "Type loss=pixel_softmax_cross_entropy"),
        (["task=classification", "dataset=digit_scenes"], "for task=segmentation, task=detection or"),
        (["dataset.digit_size=[24,80]"], "more than a scene of [64, 64] can hold"),
        (["dataset.digits=[3,1]"], "must be [smallest, largest]"),
        (["dataset.augment.flip=true"], "there is no 'dataset.augment.flip'"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(words: Any, said: str, capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "own_losses.py").write_text("def plain():\n    return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["task=segmentation", *words, "logger=[]"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, words, said",
    [
        (
            "gluoncv.loss.MixSoftmaxCrossEntropyLoss",
            ["loss.aux=false"],
            "ignores its head gradient",
        ),
        ("mxtrain.loss.blocks.SoftmaxCrossEntropyLoss", [], "class indices (B, 16, 16), and fails: MXNetError"),
    ],
)
def test_a_loss_of_the_users_is_tried_before_training(describe_run: Any, name: str, words: Any, said: str) -> None:
    description = describe_run(*SMALL, "loss=l2", f"loss._target_={name}", *words)
    signature = MaskSignature((3, 16, 16), class_names=NAMES, decoding=DECODING)
    with pytest.raises(ConfigError) as caught:
        TASK.build_loss(description, signature, training=True)
    assert said in str(caught.value) and name.rpartition(".")[2] in str(caught.value)


@pytest.mark.slow
def test_a_loss_of_the_users_is_given_all_outputs(describe_run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "own_pixels.py").write_text(
        "from mxnet.gluon import HybridBlock\n\n\nclass Own(HybridBlock):\n    weighted = True\n\n"
        "    def hybrid_forward(self, F, scores, mask):\n"
        "        log_p = F.pick(F.log_softmax(scores, axis=1), F.relu(mask), axis=1)\n"
        "        return -F.sum(log_p * (mask >= 0), axis=(1, 2)), F.sum(mask >= 0, axis=(1, 2))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    signature = MaskSignature((3, 16, 16), class_names=NAMES, decoding=DECODING)
    own = TASK.build_loss(describe_run(*SMALL, "loss=l2", "loss._target_=own_pixels.Own"), signature, training=True)
    assert own.weighted
    arrays = nd.array(draw((2, 4, 3, 5))), nd.array(np.random.RandomState(0).randint(-1, 4, (2, 3, 5)))
    ours = PixelSoftmaxCrossEntropy().build_for(NAMES, {}, training=True)
    for one, other in zip(own(*arrays), ours(*arrays)):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5)


@pytest.mark.slow
def test_shown_samples_are_an_image_in_tensorboard(train_run: Any, tmp_path: Path) -> None:
    made, _ = train_run(*SMALL, "trainer.max_epochs=1", "trainer.limit_train_batches=1")
    (image,) = made.runner.context.data.samples.artifacts(made.runner.context.evaluator)
    assert image.name == "samples"
    drawn = np.asarray(image.draw(4))
    assert drawn.ndim == 3 and len(np.unique(drawn.reshape(-1, 3), axis=0)) > 50
    assert SimpleNamespace(size=image.draw(1).size).size != image.draw(4).size


def test_the_mean_score_of_the_largest_class_over_its_pixels_is_explained() -> None:
    """The background only where there is nothing else; nothing that fills the frame up counts."""
    score_BKHW = draw((3, 4, 4, 6))
    score_BKHW[0, 0] += 9  # background, but for five pixels
    score_BKHW[0, 2, 1:3, 1:3] += 20
    score_BKHW[0, 1, 0, 0] += 20
    score_BKHW[0, 3, 3, :] += 40  # below the image, which has 3 of the 4 rows
    score_BKHW[1, 0] += 99
    mask_BHW = np.zeros((3, 4, 6), int)
    mask_BHW[0, 1:3, 1:3] = 2
    mask_BHW[2] = -1
    meta = np.array([[3, 6, 3, 6], [4, 6, 4, 6], [8, 12, 4, 6]])
    scores = nd.array(score_BKHW)
    found = TASK.explained(None, SIGNATURE, (scores,), Batch((), (nd.array(mask_BHW),), 3, meta=meta))
    assert list(found.predicted[:2]) == ["dog", "background"] and list(found.true) == ["dog", "background", ""]
    assert found.is_right_B.tolist() == [True, True, False]
    assert found.region_BHW is not None and found.extent_B2 is not None
    region_HW = np.zeros((4, 6), bool)
    region_HW[1:3, 1:3] = True
    np.testing.assert_array_equal(found.region_BHW[0], region_HW)
    assert found.region_BHW[1].all() and found.extent_B2.tolist() == [[3, 6], [4, 6], [4, 6]]
    p_BKHW = np.exp(score_BKHW) / np.exp(score_BKHW).sum(axis=1, keepdims=True)
    chosen = NAMES.index(found.predicted[2])
    assert found.probability_B[2] == pytest.approx(p_BKHW[2, chosen][found.region_BHW[2]].mean(), rel=1e-4)
    # Of other scores, the same class and pixels; each pixel's share of the gradient is one of their number.
    other = nd.array(draw((3, 4, 4, 6), seed=1))
    other.attach_grad()
    with autograd.record():
        score_B = found.score((other,))
    score_B.backward()
    for row, k in enumerate((2, 0, chosen)):
        region_HW = found.region_BHW[row]
        assert score_B[row].asscalar() == pytest.approx(other[row, k].asnumpy()[region_HW].mean(), rel=1e-4, abs=1e-6)
        gradient_KHW = np.zeros((4, 4, 6))
        gradient_KHW[k][region_HW] = 1 / region_HW.sum()
        np.testing.assert_allclose(other.grad[row].asnumpy(), gradient_KHW, atol=1e-6)


def test_batch_without_frames_is_explained_completely() -> None:
    found = TASK.explained(None, SIGNATURE, (nd.array(draw((1, 4, 4, 6))),), Batch((), (nd.zeros((1, 4, 6)),), 1))
    assert found.extent_B2 is None and found.region_BHW is not None and found.region_BHW.any()
