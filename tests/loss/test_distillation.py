"""Distillation: the loss against NumPy, what is refused, resumed runs, placements, and no use of labels."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from running import SMALL, assert_same, rows, train_here, verify

import mxtrain
from mxtrain.errors import ConfigError

PLAIN = (
    *SMALL,
    "early_stopping=off",
    "trainer.test=false",
    "lr_scheduler=constant",
    "trainer.log_interval=1",
)


def softmax(score_BK, temperature):
    shifted = np.exp((score_BK - score_BK.max(axis=1, keepdims=True)) / temperature)
    return shifted / shifted.sum(axis=1, keepdims=True)


def divergence(teacher_BK, student_BK, temperature):
    """T^2 KL(teacher, student), written from Hinton et al.'s paper."""
    p, q = softmax(teacher_BK, temperature), softmax(student_BK, temperature)
    return temperature**2 * (p * (np.log(p) - np.log(q))).sum(axis=1)


@pytest.mark.parametrize("alpha, labels", [(0.3, True), (1.0, True), (0.0, False)])
def test_loss_of_scores_and_maps(alpha, labels) -> None:
    from mxtrain.engine.backend import nd
    from mxtrain.loss.blocks import SoftmaxCrossEntropyLoss
    from mxtrain.loss.distillation_blocks import attention_maps
    from mxtrain.loss.spec import Distillation

    rng = np.random.default_rng(0)
    score, teacher = (rng.normal(scale=3, size=(6, 5)).astype(np.float32) for _ in range(2))
    target = rng.integers(5, size=6)
    one, other = rng.normal(size=(6, 3, 4, 4)).astype(np.float32), rng.normal(size=(6, 7, 4, 4)).astype(np.float32)
    given = {"alpha": alpha} if labels else {}
    spec = Distillation(teacher="x", temperature=3.0, labels=labels, features={"a": "b"}, feature_weight=2.0, **given)
    block = spec.build_loss(SoftmaxCrossEntropyLoss(), "scores", 1, True)
    block.hybridize()
    found = block(*map(nd.array, (score, one, target, teacher)), attention_maps(nd, nd.array(other))).asnumpy()

    def unit(feature):
        flat = (feature**2).sum(axis=1).reshape(6, -1)
        return flat / np.linalg.norm(flat, axis=1, keepdims=True)

    own = -np.log(softmax(score, 1.0)[np.arange(6), target])
    expected = alpha * own + (1 - alpha) * divergence(teacher, score, 3.0)
    expected += 2.0 * 0.5 * ((unit(one) - unit(other)) ** 2).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


def test_loss_of_one_score_of_two_classes() -> None:
    """One score of the second class is learned from as the scores 0 and s of both."""
    from mxtrain.engine.backend import nd
    from mxtrain.loss.blocks import BinaryCrossEntropyLoss
    from mxtrain.loss.spec import Distillation

    rng = np.random.default_rng(0)
    score, teacher = (rng.normal(scale=3, size=(6, 1)).astype(np.float32) for _ in range(2))
    target = rng.integers(2, size=6)
    spec = Distillation(teacher="x", temperature=3.0, alpha=0.3)
    block = spec.build_loss(BinaryCrossEntropyLoss(1.0), "score", 1, True)
    block.hybridize()
    found = block(*map(nd.array, (score, target, teacher))).asnumpy()
    both, known = (np.concatenate([np.zeros((6, 1)), values], axis=1) for values in (score, teacher))
    own = np.log1p(np.exp(np.where(target == 1, -1, 1) * score[:, 0]))
    np.testing.assert_allclose(found, 0.3 * own + 0.7 * divergence(known, both, 3.0), rtol=2e-5, atol=1e-5)


@pytest.mark.zoo_except("3")
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_rows_of_tables_are_distilled(tmp_path, count) -> None:
    """The first loss of a run against NumPy, for one score of two classes and for three scores."""
    import mxnet as mx

    rng = np.random.default_rng(0)
    names = np.array(["a", "b", "c"][:count])
    lines = [f"{x:.3f},{'no' if x > 0 else 'yes'},{names[k % count]}" for k, x in enumerate(rng.normal(size=60))]
    (tmp_path / "t.csv").write_text("\n".join(["x,y,kind", *lines]) + "\n")
    table = (
        *PLAIN,
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={tmp_path / 't.csv'}",
        "dataset.target=kind",
        "model=mlp",
        "metric=log_loss",
    )
    train_here(tmp_path / "teacher", *table, "trainer.max_epochs=2", "trainer.seed=5")
    train_here(
        tmp_path / "run",
        *table,
        f"distillation.teacher={tmp_path / 'teacher'}",
        "distillation.alpha=0",
        "trainer.overfit_batches=1",
        "optimizer=sgd",
        "optimizer.lr=1e-12",
        "trainer.max_steps=1",
        exit_code=75,
    )
    student, other = mxtrain.load(tmp_path / "run", which="last"), mxtrain.load(tmp_path / "teacher")
    batch = next(iter(student.batches("train", "dataset.eval_batch_size=100")))
    inputs = [mx.nd.array(batch[name], dtype=batch[name].dtype) for name in batch if name.startswith("input")]
    score, known = (run.network(*inputs).asnumpy() for run in (student, other))
    assert score.shape[1] == (1 if count == 2 else 3)
    if count == 2:
        score, known = (np.concatenate([np.zeros_like(values), values], axis=1) for values in (score, known))
    assert rows(tmp_path / "run")[0]["loss"] == pytest.approx(divergence(known, score, 4.0).mean(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, said",
    [
        (["distillation.teacher=x", "distillation.labels=false", "distillation.alpha=0.5"], "Leave alpha out"),
        (["distillation.teacher=x", "distillation.temperature=0"], "temperature"),
        (["distillation.features={features.1: features.1}"], "Type distillation.teacher=RUN"),
        (["distillation.teacher=x", "task=detection"], "task=detection has no outputs"),
        (["distillation.alpha=0.5"], "distillation.alpha has no effect without a teacher"),
    ],
)
def test_wrong_settings_are_refused(overrides, said) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        mxtrain.compose(*overrides)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("teacher") / "run"
    train_here(run_dir, *PLAIN, "model.hidden=[32]", "trainer.max_epochs=3")
    return run_dir


def taught(teacher, *more):
    return (*PLAIN, f"distillation.teacher={teacher}", "trainer.max_epochs=3", *more)


@pytest.fixture(scope="module")
def unbroken(teacher):
    run_dir = teacher.parent / "student"
    train_here(run_dir, *taught(teacher))
    return run_dir


@pytest.mark.slow
def test_first_loss_of_a_run(teacher, tmp_path) -> None:
    """The first row of metrics.jsonl against NumPy, with the outputs of both networks as `load` gives them."""
    settings = taught(
        teacher,
        "distillation.alpha=0.3",
        "distillation.temperature=2",
        "trainer.overfit_batches=1",
        "optimizer=sgd",
        "optimizer.lr=1e-12",
        "trainer.max_steps=1",
    )
    train_here(tmp_path / "run", *settings, exit_code=75)
    student, other = mxtrain.load(tmp_path / "run", which="last"), mxtrain.load(teacher)
    batch = next(iter(student.batches("train", "dataset.eval_batch_size=100")))

    import mxnet as mx

    score, known = (run.network(mx.nd.array(batch["input"])).asnumpy() for run in (student, other))
    label = batch["target"].astype(int)
    own = -np.log(softmax(score, 1.0)[np.arange(len(label)), label])
    expected = np.mean(0.3 * own + 0.7 * divergence(known, score, 2.0))
    row = rows(tmp_path / "run")[0]
    assert row["loss"] == pytest.approx(expected, rel=1e-5)
    assert row["accuracy"] == pytest.approx(np.mean(score.argmax(axis=1) == label))


@pytest.mark.zoo
@pytest.mark.slow
def test_resumed_run_is_bit_exact(unbroken, teacher, tmp_path) -> None:
    for stop in (5, 16, 30):
        train_here(tmp_path / "run", *taught(teacher), f"trainer.max_steps={stop}", exit_code=75)
    train_here(tmp_path / "run", *taught(teacher))
    assert_same(tmp_path / "run", unbroken)


@pytest.mark.slow
@pytest.mark.zoo
def test_another_teacher_is_refused_on_resume(teacher, tmp_path) -> None:
    shutil.copytree(teacher, tmp_path / "teacher")
    settings = taught(tmp_path / "teacher")
    train_here(tmp_path / "run", *settings, "trainer.max_steps=5", exit_code=75)
    shutil.rmtree(tmp_path / "teacher")
    train_here(tmp_path / "teacher", *PLAIN, "model.hidden=[16]", "trainer.max_epochs=1")
    assert "another teacher than the one that is now in" in train_here(tmp_path / "run", *settings, exit_code=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        ("parallel=data", "parallel.devices=cpu:2"),
        pytest.param(("parallel=pipeline", "parallel.devices=cpu:2", "parallel.microbatches=2"), marks=pytest.mark.zoo),
        pytest.param(("kvstore=dist_sync", "cluster.workers=2"), marks=pytest.mark.zoo),
    ],
)
def test_placements_learn_the_same(unbroken, teacher, tmp_path, placement) -> None:
    train_here(tmp_path / "run", *taught(teacher), *placement)
    found, expected = ([row["loss"] for row in rows(run)] for run in (tmp_path / "run", unbroken))
    np.testing.assert_allclose(found, expected, rtol=2e-3)


@pytest.mark.zoo
@pytest.mark.slow
def test_verify_and_features(tmp_path) -> None:
    """Features leave the network as further outputs under every placement; the student that is left has none."""
    lenet = ("model=lenet", "model.channels=[4,8]", "model.hidden=16", "model.dropout=0")
    train_here(tmp_path / "teacher", *PLAIN, *lenet, "model.channels=[8,16]", "trainer.max_epochs=1")
    settings = (
        *PLAIN,
        *lenet,
        f"distillation.teacher={tmp_path / 'teacher'}",
        "distillation.features={features.6: features.6}",
    )
    found = verify(*settings, "parallel=pipeline", "parallel.devices=cpu:2", "parallel.microbatches=2", "steps=2")
    assert found.returncode == 0, found.stdout + found.stderr
    train_here(tmp_path / "run", *settings, "trainer.max_epochs=1")
    run = mxtrain.load(tmp_path / "run")
    assert run.evaluate(split="val")["loss"] > 0
    import mxnet as mx

    assert run.network(mx.nd.zeros((2, 1, 8, 8))).shape == (2, 10)
    wrong = [*settings[:-1], "distillation.features={features.6: features.15}"]
    assert "gives vectors, and only maps" in train_here(tmp_path / "other", *wrong, exit_code=2)
    wrong = [*settings[:-1], "distillation.features={features.6: features.5}"]
    assert "maps of 4x4, and the teacher" in train_here(tmp_path / "other", *wrong, exit_code=2)
    wrong = [*settings[:-1], "distillation.features={featrues.6: features.6}"]
    assert "no layer 'featrues.6'. Did you mean" in train_here(tmp_path / "other", *wrong, exit_code=2)


@pytest.mark.slow
def test_labels_are_not_used(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32) + (x[:, 1] > 0)
    common = dict(model="mlp", early_stopping="off", optimizer={"lr": 0.01})
    mxtrain.train(
        "trainer.max_epochs=4", "dataset.batch_size=50", dir=tmp_path / "teacher", dataset=((x, y), (x, y)), **common
    )
    found = []
    for number, labels in enumerate((y, rng.permutation(y))):
        run = mxtrain.train(
            "trainer.max_epochs=2",
            "dataset.batch_size=50",
            f"distillation.teacher={tmp_path / 'teacher'}",
            "distillation.labels=false",
            "distillation.trust_code=true",
            "model.hidden=[4]",
            dir=tmp_path / f"student{number}",
            dataset=((x, labels), (x, y)),
            **common,
        )
        found.append(run.status["weights_sha256"])
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, said",
    [
        (
            ["dataset.image_size=[12,12]"],
            r"differ from those of this run in shape: \[1, 8, 8\] there, \[1, 12, 12\] here",
        ),
        (["dataset=synthetic"], "outputs of .* numbers for a sample|differ from those of this run in"),
        (["task=regression", "dataset=number_table"], "was trained with task=classification, and this run has"),
    ],
)
def test_teacher_of_other_data_is_refused(teacher, tmp_path, overrides, said) -> None:
    import re

    output = train_here(tmp_path / "run", f"distillation.teacher={teacher}", "model=mlp", *overrides, exit_code=2)
    assert re.search(said, output), output
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_code_of_a_teacher_is_not_run(teacher, tmp_path) -> None:
    """A description that names somebody's class is refused before it is imported."""
    import hashlib
    import json

    shutil.copytree(teacher, tmp_path / "teacher")
    for folder in (tmp_path / "teacher" / "checkpoints").iterdir():
        text = (folder / "state.json").read_text()
        text = text.replace("mxtrain.model.mlp.MLP", "webbrowser_of_a_stranger.Open")
        (folder / "state.json").write_text(text)
        manifest = json.loads((folder / "manifest.json").read_text())
        digest = manifest["files"]["state.json"]
        digest.update(size=len(text.encode()), sha256=hashlib.sha256(text.encode()).hexdigest())
        (folder / "manifest.json").write_text(json.dumps(manifest))
    said = train_here(tmp_path / "run", *PLAIN, f"distillation.teacher={tmp_path / 'teacher'}", exit_code=2)
    assert "webbrowser_of_a_stranger.Open" in said and "distillation.trust_code=true" in said


@pytest.mark.parametrize("features", [{}, {"a": "b"}])
@pytest.mark.parametrize("training", [True, False])
def test_loss_of_values_need_be_no_hybrid_block(features, training) -> None:
    from mxtrain.engine.backend import gluon, nd
    from mxtrain.loss.blocks import RegressionLoss
    from mxtrain.loss.spec import Distillation

    rng = np.random.default_rng(0)
    output, teacher, target = rng.normal(size=(3, 6)).astype(np.float32)
    maps = [nd.ones((6, 2, 3))] if features else []
    block = Distillation(teacher="x", alpha=0.3, features=features).build_loss(
        RegressionLoss(gluon.loss.L2Loss(), 1.0, 2.0), "values", 1, training
    )
    block.hybridize()
    arrays = [nd.array(output.reshape(6, 1)), *maps, nd.array(target)]
    if training:
        # A map of ones has this attention_maps, so it adds nothing.
        arrays += [nd.array(teacher.reshape(6, 1)), *(nd.ones((6, 3)) / np.sqrt(3) for _ in maps)]
    own = 0.5 * (output - (target - 1) / 2) ** 2
    expected = 0.3 * own + 0.7 * (output - teacher) ** 2 if training else own
    np.testing.assert_allclose(block(*arrays).asnumpy(), expected, rtol=1e-5, atol=1e-6)
