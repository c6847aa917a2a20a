"""Whole runs whose tables have gradients of some rows only: the same weights, checkpoints and measurements."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxtrain.checkpoint import open_checkpoint
from mxtrain.data.signature import signature_of
from mxtrain.errors import ConfigError
from mxtrain.optimizer.rows import lazy_update
from mxtrain.training.build import build_run
from mxtrain.training.trained import load_network, load_trained
from mxtrain.training.verification import verify

ADAM = ("optimizer=adam", "optimizer.wd=0.01")


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """Overrides that train on 300 rows with two columns of hashed names."""
    random = np.random.RandomState(0)
    user_N, item_N, age_N = random.randint(0, 90, 300), random.randint(0, 60, 300), random.rand(300)
    lines = [f"u{u},i{i},{a:.3f},{(u + i) % 3 // 2}" for u, i, a in zip(user_N, item_N, age_N)]
    (tmp_path / "clicks.csv").write_text("\n".join(["user,item,age,target", *lines]) + "\n")
    columns = "{user: {kind: hashed, buckets: 500}, item: {kind: hashed, buckets: 300}, age: number}"
    return (
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={tmp_path / 'clicks.csv'}",
        f"dataset.columns={columns}",
        "dataset.batch_size=32",
        "model=deepfm",
        "model.hidden=[8]",
        "logger=jsonl",
        "trainer.max_epochs=2",
        "task.baseline_rows=0",
    )


@pytest.fixture
def train(describe_run: Any, settings: Any, tmp_path: Path) -> Any:
    """(name of the run, overrides) -> its result."""

    def go(name: str, *overrides: str) -> Any:
        run = build_run(describe_run(*settings, *overrides), tmp_path / name)
        return run.runner.train(run.info)

    return go


@pytest.mark.slow
def test_a_sparse_run_has_the_dense_runs_weights_and_continues_from_its_checkpoint(train: Any) -> None:
    """Either form goes on from the other's checkpoint: they are the same bytes."""
    dense = train("dense", *ADAM, "trainer.sparse_grad=false")
    sparse = train("sparse", *ADAM, "trainer.sparse_grad=true")
    assert sparse.weights_sha256 == dense.weights_sha256
    # The predictions of validation may differ in the last bit of float32: rows are gathered in another place.
    assert sparse.metrics == pytest.approx(dense.metrics, rel=1e-7)
    for number, form in ((3, "true"), (6, "false"), (None, "true")):
        budget = f"trainer.max_steps={'null' if number is None else number}"
        broken = train("broken", *ADAM, f"trainer.sparse_grad={form}", budget)
    assert broken.weights_sha256 == dense.weights_sha256


@pytest.mark.zoo
def test_a_lazy_run_resumes_to_the_same_bits(train: Any) -> None:
    given = (*ADAM, "optimizer.lazy_update=true")
    whole = train("whole", *given)
    train("broken", *given, "trainer.max_steps=5")
    assert train("broken", *given).weights_sha256 == whole.weights_sha256
    assert whole.weights_sha256 != train("exact", *ADAM).weights_sha256


@pytest.mark.zoo
def test_sparse_tables_are_evaluated_and_exported_completely(
    train: Any, describe_run: Any, settings: Any, tmp_path: Path
) -> None:
    train("run", *ADAM, "trainer.sparse_grad=true", "trainer.max_epochs=1")
    checkpoint = open_checkpoint(tmp_path / "run")
    signature = signature_of(checkpoint, describe_run(*settings).dataset.signature_class)
    descriptions = [describe_run(*settings, *ADAM, f"trainer.sparse_grad={form}") for form in ("true", "false")]
    inputs = next(iter(build_run(descriptions[0], tmp_path / "other").runner.context.data.val.epoch(0))).inputs
    outputs = [load_trained(checkpoint, one, signature).strategy.predict(inputs)[0] for one in descriptions]
    network = load_network(checkpoint, descriptions[0], signature)
    np.testing.assert_allclose(outputs[0].asnumpy(), outputs[1].asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(network(*inputs).asnumpy(), outputs[1].asnumpy(), rtol=1e-6)
    for name, parameter in network._collect_params_with_prefix().items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), checkpoint.arrays("model")[name])


@pytest.mark.slow
@pytest.mark.parametrize("lazy", ["false", "true"])
def test_verify_compares_with_the_dense_computation(describe_run: Any, settings: Any, lazy: str) -> None:
    given = (*ADAM, "trainer.sparse_grad=true", f"optimizer.lazy_update={lazy}", "parallel=data")
    found = verify(describe_run(*settings, *given), steps=3, tolerance=1e-6)
    assert found.passed and found.bits, found


@pytest.mark.slow
def test_verify_finds_rows_that_do_not_continue_by_their_momentum(
    describe_run: Any, settings: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("mxtrain.optimizer.updater.exact_update", lazy_update)
    given = ("optimizer=nag", "optimizer.momentum=0.9", "trainer.sparse_grad=true")  # no operator of our own
    found = verify(describe_run(*settings, *given), steps=3, tolerance=1e-6)
    assert not found.passed and "table" in found.worst.layer


@pytest.mark.slow
def test_the_summary_counts_all_rows(describe_run: Any, settings: Any, tmp_path: Path) -> None:
    forms = [
        build_run(describe_run(*settings, f"trainer.sparse_grad={form}"), tmp_path / form).info.model_table
        for form in ("true", "false")
    ]
    captions = [str(table.caption) for table in forms]
    assert captions[0].split(";")[0] == captions[1].split(";")[0] and "trainable" in captions[0]


@pytest.mark.slow
def test_a_large_table_that_stays_dense_is_reported(
    describe_run: Any, settings: Any, tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("mxtrain.training.network.PAYS_FROM", 100)
    caplog.set_level(logging.INFO, "mxtrain")
    build_run(describe_run(*settings, "optimizer=lamb"), tmp_path / "run")
    assert "holds all of its rows: optimizer=lamb looks at the norm of a whole table" in caplog.text


@pytest.mark.slow
def test_network_that_uses_ids_besides_lookup_is_refused(
    describe_run: Any, settings: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("mxtrain.model.prepare.make_sparse", lambda *_: ["the ids of a table are used by Cast, too"])
    with pytest.raises(ConfigError, match="used by Cast, too. Type trainer.sparse_grad=auto"):
        build_run(describe_run(*settings, "trainer.sparse_grad=true"), tmp_path / "run")
