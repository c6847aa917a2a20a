"""Test-time augmentation and tiles in `eval`, `predict` and Python: results are those computed by hand from single
passes, and wrong settings are refused before anything is written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Sequence

import numpy as np
import pytest
from PIL import Image

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.config.specs import validate_arguments
from mxtrain.data.loading.sources import MemorySource
from mxtrain.data.signature import Signature
from mxtrain.data.spec import open_splits
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.training.trained import Trained
from mxtrain.workflows.evaluate import EvalSettings
from mxtrain.workflows.passes import ONE_PASS, WHOLE, MergedTiles, Passes, PassSettings, read_passes

LENET = ("model.channels=[4,8]", "model.hidden=16", "trainer.max_steps=40", "trainer.max_epochs=null")


def settings(**values: Any) -> PassSettings:
    return validate_arguments(PassSettings, values, "eval")


@pytest.mark.parametrize(
    "values, text",
    [
        ({}, ""),
        ({"augment": "flip"}, "augment=flip"),
        ({"augment": "[flip, vflip,flip]"}, "augment=[flip,vflip]"),
        ({"augment": ["scales"], "augment_scales": "[0.5, 2]"}, "augment=scales augment_scales=[0.5,2]"),
        ({"augment": ["scales"], "augment_scales": 2}, "augment=scales augment_scales=2"),
        ({"tile": "auto"}, "tile=auto tile_overlap=0.25"),
        ({"tile": 512, "tile_overlap": 0.5}, "tile=[512,512] tile_overlap=0.5"),
        ({"tile": "[64,96]", "tile_blend": "crop"}, "tile=[64,96] tile_overlap=0.25 tile_blend=crop"),
    ],
)
def test_settings_are_shown_as_typed(values: Dict[str, Any], text: str) -> None:
    assert settings(**values).text == text


def test_results_of_one_pass_are_those_of_before() -> None:
    trained: Any = object()
    assert ONE_PASS.facts() == {} and ONE_PASS.passes(None, None) == WHOLE  # type: ignore[arg-type]
    assert WHOLE.for_batches(trained) is WHOLE.for_samples(trained, []) is WHOLE.for_run(trained) is trained


@pytest.mark.parametrize(
    "values, part",
    [
        ({"augment": True}, "names variants, not true or false"),
        ({"augment": "false"}, "names variants, not true or false"),
        ({"augment": "[]"}, "names no variant"),
        ({"augment": []}, "names no variant"),
        ({"augment_scales": [0.5]}, "augment_scales is for augment=scales"),
        ({"augment": "scales", "augment_scales": "[a]"}, "augment_scales.0=a"),
        ({"augment": "scales", "augment_scales": [0.0]}, "augment_scales.0"),
        ({"augment": "scales", "augment_scales": [9.0]}, "less than or equal to 8"),
        ({"augment": "scales", "augment_scales": []}, "at least 1"),
        ({"augment": "scales", "augment_scales": [0.1 * number for number in range(1, 10)]}, "at most 8"),
        ({"tile": 8}, "greater than or equal to 16"),
        ({"tile": [512, 9000]}, "less than or equal to 8192"),
        ({"tile": [1, 2, 3]}, "at most 2"),
        ({"tile": "large"}, "tile"),
        ({"tile": "auto", "tile_overlap": 0.95}, "less than or equal to 0.9"),
        ({"tile_overlap": 0.5}, "tile_overlap is for tiles: type tile=auto"),
        ({"tile_blend": "crop"}, "tile_blend is for tiles: type tile=auto"),
        ({"tile": "auto", "tile_blend": "mean"}, "tile_blend=mean"),
        ({"augmnt": "flip"}, "Did you mean 'eval.augment'?"),
    ],
)
def test_wrong_settings_are_refused(values: Dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings(**values)
    assert part in str(error.value), error.value


def test_none_is_the_default_in_python() -> None:
    assert read_passes("predict", {"augment": None, "tile": (64, 64)}) == settings(tile=64)


@pytest.mark.parametrize("name", ["augment=flip", "tile=64"])
def test_explanations_are_of_one_pass(name: str) -> None:
    key, value = name.split("=")
    with pytest.raises(ValueError, match=f"explain explains one pass of the network: leave {key} out"):
        EvalSettings(explain="grad_cam", **{key: value})
    if key == "tile":
        with pytest.raises(ValueError, match="corrupt changes images in the size of the network's input"):
            EvalSettings(corrupt=["noise"], tile=64)


@pytest.mark.parametrize(
    "task, values, part",
    [
        ("task=regression", {"augment": "flip"}, "augment=flip: it mirrors and resizes images, and the dataset gives"),
        (
            "task=language_modeling",
            {"tile": "auto"},
            "tile=auto: task=language_modeling predicts one result for a whole",
        ),
        ("dataset=digits", {"tile": 64}, "tile=[64,64]: task=classification predicts one result"),
    ],
)
def test_samples_and_tasks_without_variants_are_refused(
    describe_run: Any, task: str, values: Dict[str, Any], part: str
) -> None:
    with pytest.raises(ConfigError) as error:
        settings(**values).passes(describe_run(task), Signature((4,)))
    assert str(error.value).startswith(part)


def test_wrong_variants_are_refused_before_anything_is_written(refused: Any, write_run: Any, description: Any) -> None:
    run_dir = str(write_run(description))
    assert "Did you mean 'augment'?" in refused("eval", run_dir, "augmet=flip")
    assert "serve: augment=flip: an exported network answers with one pass" in refused("serve", run_dir, "augment=flip")
    assert "tile_overlap is for tiles" in refused("predict", run_dir, "x.png", "tile_overlap=0.5")


def test_only_the_samples_that_are_measured_are_opened() -> None:
    opened: List[int] = []
    signature = SimpleNamespace(tiled=lambda source, size, overlap: opened.append(len(source)) or source)
    dataset = SimpleNamespace(eval_batch_size=2)
    evaluator = SimpleNamespace(
        _strategy=SimpleNamespace(predict=None), _loss=None, _meter=None, _on_host={}, merging=None
    )
    source = MemorySource(np.zeros((7, 1, 4, 4), np.uint8), np.zeros(7))
    trained = Trained(evaluator, None, SimpleNamespace(dataset=dataset), signature, None)  # type: ignore[arg-type]
    plan = Passes(tiles=MergedTiles(None, 0.25, None))  # type: ignore[arg-type]
    for limit_batches in (None, 2, 9):
        assert not plan.for_samples(trained, source, limit_batches).evaluator.measures_outputs
    assert opened == [7, 4, 7]

    def unreadable(source: Any, size: Any, overlap: float) -> None:
        raise LoaderError("'a.png' cannot be read.")

    signature.tiled = unreadable
    with pytest.raises(DataError, match="'a.png' cannot be read."):
        plan.for_samples(trained, source)


def softmax(score: np.ndarray) -> np.ndarray:
    exponential = np.exp(score - score.max(axis=-1, keepdims=True))
    return exponential / exponential.sum(axis=-1, keepdims=True)


@pytest.mark.slow
def test_evaluation_with_mirrored_images_matches_a_computation_by_hand(
    train_run: Any, tmp_path: Path, capsys: Any
) -> None:
    train_run(*LENET)
    folder = str(tmp_path / "run")
    before = mxtrain.evaluate(folder, split="test")
    assert run(["eval", folder, "augment=flip"]) == 0
    shown = capsys.readouterr().out
    measured = json.loads((tmp_path / "run" / "eval" / "test" / "metrics.json").read_text())
    assert measured["augment"] == ["flip"] and "(augment=flip, 270 samples" in shown
    trained = mxtrain.load(folder)
    network, probabilities, labels = trained.network, [], []
    for batch in trained.batches("test"):
        from mxtrain.engine.backend import nd

        passes = [
            softmax(network(nd.array(image)).asnumpy().astype(np.float64))
            for image in (batch["input"], batch["input"][..., ::-1])
        ]
        probabilities.append(np.mean(passes, axis=0))
        labels.append(batch["target"].astype(int))
    probability_NK, label_N = np.concatenate(probabilities), np.concatenate(labels)
    assert measured["accuracy"] == pytest.approx((probability_NK.argmax(axis=1) == label_N).mean())
    loss = -np.log(probability_NK[np.arange(len(label_N)), label_N]).mean()
    assert measured["loss"] == pytest.approx(loss, rel=1e-4)
    assert trained.evaluate(augment="flip")["loss"] == pytest.approx(measured["loss"], rel=1e-6)
    # `predict` predicts what `eval` measured, and one pass gives the same bits as before.
    assert run(["predict", folder, "split=test", "augment=flip", "top_k=10", f"output={tmp_path / 'rows.jsonl'}"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    found_NK = [[{one["class"]: one["probability"] for one in row["top"]}[str(k)] for k in range(10)] for row in rows]
    np.testing.assert_allclose(found_NK, probability_NK, atol=2e-6)
    results = list(trained.results(split="test", augment=["flip"]))
    assert [row["predicted"] for row in results] == [str(best) for best in probability_NK.argmax(axis=1)]
    again = trained.evaluate(split="test")
    assert {**again, "samples_per_s": 0} == {**before, "samples_per_s": 0} and again["loss"] != measured["loss"]
    with pytest.raises(
        ConfigError, match=r"^predict\(\) has no argument 'topk'. Did you mean 'top_k'\? It takes inputs, top_k,"
    ):
        trained.predict([], topk=5)  # type: ignore[call-arg]
    capsys.readouterr()
    assert run(["eval", folder, "augment=scales", f"output={tmp_path / 'scaled'}"]) == 2
    assert "the network does not take inputs of 1x6x6 (scale 0.75)" in capsys.readouterr().err
    assert not (tmp_path / "scaled").exists()


def suppressed(detection_N6: np.ndarray, iou: float) -> np.ndarray:
    """Greedy non-maximum suppression by hand, for each class."""
    kept: List[np.ndarray] = []
    for row in detection_N6[np.argsort(-detection_N6[:, 1], kind="stable")]:
        shares = []
        for other in kept:
            if other[0] == row[0]:
                low, high = np.maximum(row[2:4], other[2:4]), np.minimum(row[4:6], other[4:6])
                common = np.maximum(high - low, 0).prod()
                areas = [(box[4:6] - box[2:4]).prod() for box in (row, other)]
                shares.append(common / max(sum(areas) - common, 1e-12))
        if max(shares, default=0) <= iou:
            kept.append(row)
    return np.array(kept)


def coco_ap(true_PG5: Sequence[np.ndarray], detection_PN6: Sequence[np.ndarray]) -> float:
    """COCO's average precision by its definition: of each class and threshold, detections in the order of their scores
    take the object of the highest overlap that is left, and the precision is averaged over 101 recalls."""
    values = []
    for threshold in np.arange(0.5, 0.96, 0.05):
        for label in np.unique(np.concatenate(true_PG5)[:, 4]):
            hits, total = [], 0
            for true_G5, detection_N6 in zip(true_PG5, detection_PN6):
                left = [box[:4] for box in true_G5 if box[4] == label]
                total += len(left)
                for _, score, *box in sorted(
                    detection_N6[detection_N6[:, 0] == label][:100].tolist(), key=lambda r: -r[1]
                ):
                    shares = [share(np.array(box), other) for other in left]
                    is_hit = max(shares, default=0) >= threshold
                    hits.append((-score, is_hit))
                    if is_hit:
                        del left[int(np.argmax(shares))]
            hit_N = np.cumsum([is_hit for _, is_hit in sorted(hits, key=lambda hit: hit[0])])
            precision_N = np.maximum.accumulate((hit_N / np.arange(1, len(hit_N) + 1))[::-1])[::-1]
            first_R = np.searchsorted(hit_N / total, np.linspace(0, 1, 101))
            values.append(np.mean([precision_N[first] if first < len(hit_N) else 0 for first in first_R]))
    return float(np.mean(values))


def share(box: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union."""
    common = np.maximum(np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2]), 0).prod()
    return float(common / ((box[2:] - box[:2]).prod() + (other[2:] - other[:2]).prod() - common))


def write_scenes(root: Path) -> Dict[str, np.ndarray]:
    """Images of three grey levels, with masks that say which; the validation images are larger than the frame."""
    rng, masks = np.random.RandomState(0), {}
    sizes = [("train", (40, 40))] * 6 + [("val", (70, 90)), ("val", (24, 100)), ("val", (30, 20))]
    for number, (split, (height, width)) in enumerate(sizes):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        mask = np.kron(rng.randint(0, 3, (8, 10)), np.ones((10, 10), int))[:height, :width].astype(np.uint8)
        pixels = mask[..., None] * 80 + 40 + rng.randint(-20, 20, (height, width, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"images/{split}/{number}.png")
        Image.fromarray(mask).save(root / f"masks/{split}/{number}.png")
        masks[f"{number}.png"] = mask
    (root / "classes.txt").write_text("low\nmiddle\nhigh")
    return masks


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["augment=[flip,vflip]"], ["tile=32"], ["tile=32", "tile_blend=crop", "augment=flip"]]
)
def test_measured_masks_are_those_that_are_predicted(
    tmp_path: Path, train_run: Any, words: List[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    masks = write_scenes(tmp_path / "data")
    data = [f"dataset.root={tmp_path / 'data'}", "dataset.image_size=32", "dataset.batch_size=2"]
    network = ["model.channels=[4,8]", "model.width=4", "trainer.max_epochs=12", "optimizer.lr=0.02"]
    train_run("task=segmentation", "dataset=segmentation_folder", *data, *network)
    assert run(["eval", "run", *words]) == 0
    measured = json.loads((tmp_path / "run/eval/val/metrics.json").read_text())
    assert run(["predict", "run", "data/images/val", "folder=masks", "output=rows.jsonl", *words]) == 0
    same = counted = 0
    for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines()):
        true = masks[os.path.basename(row["file"])]
        found = np.asarray(Image.open(row["mask"]))
        assert found.shape == true.shape == (row["height"], row["width"])
        same, counted = same + (found == true).sum(), counted + true.size
    assert counted == 70 * 90 + 24 * 100 + 30 * 20
    assert measured["pixel_accuracy"] == pytest.approx(same / counted, abs=1e-6) and same / counted > 0.3
    if "tile=32" in words:
        assert "loss" not in measured and measured["tile"] == [32, 32]
        rows = list(mxtrain.load("run").results(split="val", tile=32))
        assert len(rows) == 3 and all(0 <= row["pixel_accuracy"] <= 1 and np.isnan(row["loss"]) for row in rows)
        # The image that is smaller than a tile is predicted as a whole one is.
        assert run(["predict", "run", "data/images/val/8.png", "folder=whole"]) == 0
        assert run(["predict", "run", "data/images/val/8.png", "folder=cut", "tile=32"]) == 0
        assert Path("whole/8.png").read_bytes() == Path("cut/8.png").read_bytes()
    capsys.readouterr()


@pytest.mark.slow
def test_tiles_of_a_detector_are_predicted_as_images_are(tmp_path: Path, train_run: Any, capsys: Any) -> None:
    network = ["model.channels=[4,8]", "model.width=4", "dataset.image_size=[32,32]", "dataset.digit_size=[10,14]"]
    few = ["dataset.num_train=16", "dataset.num_val=4", "trainer.max_epochs=2", "dataset.batch_size=4"]
    train_run("task=detection", *network, *few, "task.score_threshold=0.02", "metric=[voc_ap,coco_ap]")
    trained = mxtrain.load(str(tmp_path / "run"))
    image = np.random.RandomState(0).randint(0, 256, (32, 64, 3)).astype(np.uint8)
    found = trained.predict(image, tile=32, tile_overlap=0.0)[0]["found"]
    halves = trained.predict([image[:, :32], image[:, 32:]])
    boxes = [(one["class"], one["score"], one["box"]) for one in halves[0]["found"]]
    boxes += [
        (one["class"], one["score"], [round(x + 32 * (k % 2 == 0), 2) for k, x in enumerate(one["box"])])
        for one in halves[1]["found"]
    ]
    # Without an overlap no two tiles share pixels, so nothing is merged.
    expected = sorted(boxes, key=lambda box: -box[1])
    assert [one["score"] for one in found] == [score for _, score, _ in expected] and len(found) > 2
    assert sorted((one["class"], one["box"]) for one in found) == sorted((name, box) for name, _, box in expected)
    (tmp_path / "bad.png").write_text("no image")
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "bad.png"), "tile=32"]) == 2
    assert "type skip_unreadable=true to go on without such files" in capsys.readouterr().err
    with pytest.raises(DataError, match="bad.png' cannot be read as an image"):
        trained.predict(str(tmp_path / "bad.png"), tile=32)
    # Boxes of the mirror image are mirrored back, and the highest score of each object is kept.
    half = image[:, :32]
    plain, mirrored, merged = (
        trained.predict(one, **options).arrays[0]
        for one, options in ((half, {}), (half[:, ::-1].copy(), {}), (half, {"augment": "flip"}))
    )
    mirrored[:, [2, 4]] = 32 - mirrored[:, [4, 2]]
    by_hand = suppressed(np.concatenate([one[one[:, 0] >= 0] for one in (plain, mirrored)]), 0.5)
    by_hand, found_N6 = by_hand[:5], merged[:5]
    np.testing.assert_allclose(found_N6, by_hand, rtol=1e-3, atol=1e-3)
    assert {tuple(row) for row in found_N6.round(2).tolist()} - {tuple(row) for row in plain.round(2).tolist()}
    with pytest.raises(ConfigError, match=r"^tile=\[64,32\]: the network's input is 32x32, to which larger tiles"):
        trained.predict(image, tile=[64, 32])
    with pytest.raises(ConfigError, match="^tile_blend=crop: it averages the pixels of overlapping tiles"):
        trained.predict(image, tile=32, tile_blend="crop")
    whole, cut, flipped = (
        trained.evaluate(split="val", **options) for options in ({}, {"tile": 32}, {"augment": "flip"})
    )
    # Scenes are as large as a tile.
    assert cut["voc_ap"] == whole["voc_ap"] and "loss" not in cut and flipped["loss"] == pytest.approx(whole["loss"])
    description = trained._trained().description
    image_PCHW, box_PMD, *_ = open_splits(description.dataset).val.fetch(np.arange(4), seed=0, epoch=0, train=False)
    true = [box_MD[box_MD[:, 4] >= 0] for box_MD in box_PMD]
    for options in ({"augment": "flip"}, {"augment": ["flip", "scales"], "augment_scales": [0.5]}):
        found = trained.predict([image.transpose(1, 2, 0) for image in image_PCHW], **options).arrays
        measured = trained.evaluate(split="val", **options)["coco_ap"]
        assert measured == pytest.approx(coco_ap(true, found), abs=1e-4) and measured > 0
