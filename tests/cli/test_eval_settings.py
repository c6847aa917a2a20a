"""`eval` with `explain=` and `corrupt=`: what it writes agrees with what is computed by hand, and what it refuses."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
from low_precision import BFLOAT16
from PIL import Image

from mxtrain.cli.dispatch import run
from mxtrain.data.spec import open_splits
from mxtrain.errors import ConfigError
from mxtrain.training.loaders import build_loader
from mxtrain.training.trained import load_network
from mxtrain.vision.images.corruptions import SEVERITIES, STRENGTHS, Corrupted
from mxtrain.workflows.evaluate import EvalSettings, choose_corruptions

LENET = ("model.channels=[4,8]", "model.hidden=16", "trainer.max_steps=60", "trainer.max_epochs=null")
SCENES = (
    "task=segmentation",
    "dataset.image_size=[16,16]",
    "dataset.digit_size=[8,12]",
    "dataset.num_train=24",
    "dataset.num_val=10",
    "dataset.batch_size=8",
    "dataset.eval_batch_size=4",
    "model.channels=[8,16]",
    "model.width=8",
    "trainer.max_epochs=1",
)


def table(file: Path) -> List[Dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def by_hand(made: Any, description: Any, source: Any) -> Tuple[float, np.ndarray]:
    """The share of samples that a network names right, and each one's cross entropy."""
    signature = description.dataset.infer_signature(open_splits(description.dataset), description.model)
    right: List[bool] = []
    losses: List[float] = []
    for batch in build_loader(description, source, signature, "cpu:0").epoch(0):  # type: ignore[arg-type]
        score_BK = made.info.network(*batch.inputs).asnumpy().astype(np.float64)
        label_B = batch.targets[0].asnumpy().astype(int)
        right += (score_BK.argmax(axis=1) == label_B).tolist()
        picked_B = score_BK[np.arange(len(label_B)), label_B]
        losses += (np.log(np.exp(score_BK).sum(axis=1)) - picked_B).tolist()
    return float(np.mean(right)), np.array(losses)


@pytest.mark.slow
def test_explained_and_measured_values_match_a_computation_by_hand(
    train_run: Any, describe_run: Any, tmp_path: Path, capsys: Any
) -> None:
    made, _ = train_run(*LENET, "checkpoint.keep_top=0", "trainer.seed=3")
    description = describe_run(*LENET, "trainer.seed=3")
    source = open_splits(description.dataset).test
    assert source is not None
    folder = tmp_path / "found"
    words = ["explain=integrated_gradients", "explain_samples=5", "corrupt=[noise, blur]"]
    assert run(["eval", str(tmp_path / "run"), "which=last", f"output={folder}", *words]) == 0
    said = capsys.readouterr()
    measured = json.loads((folder / "metrics.json").read_text())
    rows = table(folder / "corrupt" / "corruptions.csv")
    assert [(row["corruption"], row["severity"]) for row in rows] == [
        ("none", "0"),
        *((name, str(severity)) for name in ("noise", "blur") for severity in range(1, 6)),
    ]
    assert float(rows[0]["accuracy"]) == measured["accuracy"] and float(rows[0]["loss"]) == measured["loss"]
    accuracy, loss_N = by_hand(made, description, source)
    assert measured["accuracy"] == pytest.approx(accuracy)
    for row in (rows[3], rows[10]):
        changed = Corrupted(source, row["corruption"], int(row["severity"]))  # type: ignore[arg-type]
        accuracy, losses = by_hand(made, description, changed)
        assert float(row["accuracy"]) == pytest.approx(accuracy)
        assert float(row["loss"]) == pytest.approx(losses.mean(), rel=1e-4)
    explained = table(folder / "explain_integrated_gradients" / "explain.csv")
    np.testing.assert_allclose(loss_N[[int(row["sample"]) for row in explained]], np.sort(loss_N)[:-6:-1], rtol=1e-4)
    for row in explained:
        difference = float(row["score"]) - float(row["baseline"])
        assert float(row["sum"]) == pytest.approx(difference, rel=0.05)
    for name in ("explain_integrated_gradients/explain", "corrupt/corruptions", "confusion"):
        with Image.open(folder / f"{name}.png") as image:
            assert image.mode == "RGB" and image.width > 300
    # A slow machine shows progress on standard error; nothing else is said there.
    assert [line for line in said.err.splitlines() if not re.search(r"\([0-9]+%\)$", line)] == []
    assert "integrated gradients, the samples of the largest loss\n" in said.out
    assert "severity" in said.out and "predicted" in said.out and said.out.count("written to") == 1


@pytest.mark.slow
def test_explained_network_scores_equal_the_run(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    """Holds for every placement and precision; the explained layer is named."""
    train_run(*LENET)
    tables = []
    low = list(BFLOAT16) or ["parallel=pipeline"]
    for number, placement in enumerate(([], ["parallel=data"], low)):
        folder = tmp_path / str(number)
        words = ["explain=grad_cam", "explain_samples=3", f"output={folder}", *placement]
        assert run(["eval", str(tmp_path / "run"), *words]) == 0
        rows = table(folder / "explain_grad_cam" / "explain.csv")
        tables.append({row["sample"]: float(row["score"]) for row in rows})
    assert tables[1] == pytest.approx(tables[0], rel=1e-4)
    for sample in set(tables[2]) & set(tables[0]):
        assert tables[2][sample] == pytest.approx(tables[0][sample], rel=1e-4)
    assert "Grad-CAM of features." in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grad_cam", "integrated_gradients"])
def test_segmentation_is_explained_and_corrupted(train_run: Any, tmp_path: Path, capsys: Any, method: str) -> None:
    train_run(*SCENES)
    words = [f"explain={method}", "explain_samples=3", "corrupt=jpeg", "split=val"]
    assert run(["eval", str(tmp_path / "run"), *words]) == 0
    folder = tmp_path / "run" / "eval" / "val"
    rows, measured = table(folder / "corrupt" / "corruptions.csv"), json.loads((folder / "metrics.json").read_text())
    for name in ("mean_iou", "pixel_accuracy", "mean_iou_all_classes"):
        assert float(rows[0][name]) == pytest.approx(measured[name])
    assert len({row["loss"] for row in rows}) == 6
    further = [f"explain_{method}/explain.csv", f"explain_{method}/explain.png", "corrupt/corruptions.png"]
    assert len(table(folder / further[0])) == 3
    # A later evaluation without these analyses keeps them.
    assert run(["eval", str(tmp_path / "run"), "split=val", "limit_batches=1"]) == 0
    assert [name for name in further if not (folder / name).exists()] == []
    assert json.loads((folder / "corrupt" / "metrics.json").read_text())["step"] == measured["step"]


@pytest.mark.slow
def test_unknown_layer_is_refused_before_evaluation(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    train_run(*LENET)
    capsys.readouterr()
    assert run(["eval", str(tmp_path / "run"), "explain=grad_cam", "explain_layer=feature.3"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: explain_layer=feature.3: there is no such layer. Type auto, or e.g. features.3")
    assert said.out == "" and not (tmp_path / "run" / "eval").exists()


@pytest.mark.parametrize("task", ["masked_language_modeling", "regression", "classification dataset=glue model=bert"])
def test_tasks_without_pixels_are_refused(describe_run: Any, task: str) -> None:
    description = describe_run(*f"task={task}".split())
    with pytest.raises(ConfigError, match="^explain: it draws which pixels .* gives (text|features). Leave"):
        description.task.check_explained(description)
    with pytest.raises(ConfigError, match="^corrupt=fog: it changes the pixels .* gives (text|features). Leave"):
        choose_corruptions(["fog"], description.dataset)


@pytest.mark.parametrize(
    "words, parts",
    [
        ("explain=gradcam", ["eval.explain=gradcam", "Did you mean 'grad_cam'?"]),
        ("explain_samples=4", ["explain_samples says how to explain", "explain=grad_cam"]),
        ("explain=grad_cam explain_samples=0", ["eval.explain_samples=0", "greater than 0"]),
        ("explain=grad_cam explain_samples=257", ["eval.explain_samples=257", "256"]),
        ("explain=integrated_gradients explain_layer=x", ["looks at no layer: leave explain_layer out"]),
        ("corrupt=nose", ["no corruption 'nose'", "Did you mean 'noise'?", "jpeg"]),
        ("corrupt=[blur,fogg]", ["no corruption 'fogg'", "Did you mean 'fog'?"]),
        ("corrupt=[]", ["name a corruption, or all"]),
        ("corupt=noise", ["there is no setting 'corupt'", "Did you mean 'corrupt'?"]),
        ("spars=1", ["there is no setting 'spars'. This command takes augment, augment_scales, corrupt, ", ", which."]),
        ("dataset.cropp=1", ["there is no 'dataset.cropp'."]),
    ],
)
def test_wrong_settings_are_refused_by_name(
    refused: Any, write_run: Any, description: Any, words: str, parts: List[str]
) -> None:
    said = refused("eval", str(write_run(description)), *words.split())
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    "given, expected",
    [
        ("noise", ["noise"]),
        ("blur,noise,blur", ["blur", "noise"]),
        ("[fog, jpeg]", ["fog", "jpeg"]),
        ("all", list(STRENGTHS)),
        ("noise,all", list(STRENGTHS)),
    ],
)
def test_names_of_corruptions(describe_run: Any, given: str, expected: List[str]) -> None:
    names = EvalSettings(corrupt=given).corrupt
    assert names is not None and EvalSettings(corrupt=None).corrupt is None
    passes = choose_corruptions(names, describe_run("dataset=digits").dataset)
    assert passes == [(name, severity) for name in expected for severity in SEVERITIES]


@pytest.mark.slow
def test_explained_network_is_on_one_device(train_run: Any, describe_run: Any, tmp_path: Path) -> None:
    from mxtrain.checkpoint import open_checkpoint
    from mxtrain.training.restored_run import RestoredRun

    train_run(*LENET)
    checkpoint = open_checkpoint(str(tmp_path / "run"))
    description = describe_run(*LENET, "parallel=pipeline", "parallel.microbatches=2")
    signature = RestoredRun.of(checkpoint, description).signature
    parameters = load_network(checkpoint, description, signature).collect_params()
    assert {str(device) for parameter in parameters.values() for device in parameter.list_ctx()} == {"cpu(0)"}
