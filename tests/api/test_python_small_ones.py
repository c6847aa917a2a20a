"""Mistakes of Python callers: each is refused or warned of with what to do, in few and small runs."""

from __future__ import annotations

import re
from typing import Any, Tuple

import numpy as np
import pytest

import mxtrain
from mxtrain.callback import Action
from mxtrain.callback.protocol import Callback
from mxtrain.errors import ConfigError, MxtrainError

pytestmark = pytest.mark.slow
QUICK = ("trainer.max_epochs=4", "trainer.limit_train_batches=1", "logger=[jsonl]")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(int)


def network(mx: Any, units: int = 2) -> Any:
    made = mx.gluon.nn.HybridSequential()
    made.add(mx.gluon.nn.Dense(8, activation="relu"), mx.gluon.nn.Dense(units))
    return made


def test_class_indices_count_from_0(mx: Any, tmp_path: Any) -> None:
    with pytest.raises(MxtrainError, match="labels go from 1 to 2, and classes count from 0. Give y - 1; if class 0"):
        mxtrain.train(*QUICK, model=network(mx), dataset=(X, Y + 1), dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    rows = mxtrain.dry_run(*QUICK, "dataset.class_names=[none,no,yes]", model=network(mx, 3), dataset=(X, Y + 1)).rows
    assert rows


def test_integral_float_targets_are_reported_as_values(mx: Any, tmp_path: Any) -> None:
    for target in (mx.nd.array(Y), Y.astype(np.float64)):
        with pytest.raises(ConfigError) as caught:
            mxtrain.train(*QUICK, model=network(mx), dataset=(X, target), dir=tmp_path / "run")
        assert "float targets are values to predict (task=regression)" in str(caught.value)
        assert "hold only the 2 whole numbers 0 and 1. For classes, give integers: y.astype(int)" in str(caught.value)
        assert "units" not in str(caught.value)
    for target in (Y / 2, Y - 1.0, np.arange(60.0), np.ones(60)):  # values that are no class indices
        with pytest.raises(ConfigError, match=r"one tensor of \(batch, 1\), one value per sample, but"):
            mxtrain.train(*QUICK, model=network(mx), dataset=(X, target.astype(np.float32)), dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numpy_semantics_are_refused_with_a_remedy(mx: Any, tmp_path: Any) -> None:
    class Numpy(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.np.dot(x, F.np.ones((4, 2)))

    class Eager(mx.gluon.Block):
        def forward(self, x: Any) -> Any:
            return mx.np.dot(x, mx.np.ones((4, 2)))

    for block in (Numpy(), Eager()):
        with pytest.raises(ConfigError, match="NumPy interface is not supported. Type mx.npx.reset_np"):
            mxtrain.train(*QUICK, model=block, dataset=(X, Y), dir=tmp_path / "run")
    mx.npx.set_np()
    try:
        for call in (mxtrain.train, mxtrain.compose, mxtrain.dry_run):
            with pytest.raises(ConfigError, match=r"npx.set_np\(\) is on: mxtrain computes with mx.nd"):
                call(*QUICK)
    finally:
        mx.npx.reset_np()
    for scope in (mx.autograd.record(), mx.autograd.train_mode(), mx.autograd.record(train_mode=False)):
        with scope, pytest.raises(ConfigError, match="Leave the scope first"):
            mxtrain.train(*QUICK, model=network(mx), dataset=(X, Y), dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Stopping(Callback):
    def on_steps(self, rows: Any, progress: Any) -> Any:
        return True


class StoppingAction(Action):
    def before_step(self, run: Any) -> Any:
        return True


@pytest.mark.parametrize(
    "metrics, said",
    [
        (
            {"own": lambda target, prediction: None},
            r"metric.own: .*<lambda> returned None \(of type NoneType\): a metric",
        ),
        ({"own": lambda target, prediction: "0.5"}, "returned '0.5' .of type str"),
        ({"own": lambda target, prediction: target}, "of type ndarray"),
    ],
)
def test_a_metric_without_a_number_is_named(mx: Any, metrics: Any, said: str, tmp_path: Any) -> None:
    run = mxtrain.train(*QUICK, model=network(mx), dataset=(X, Y), metric=metrics, dir=tmp_path)
    assert run.state == "failed" and re.search(said, run.cause)


def test_metrics_and_callbacks_of_other_libraries(mx: Any, tmp_path: Any, caplog: Any) -> None:
    """Composite metrics, a monitored value that is never a number, callbacks that return True: one run."""
    composite = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(name="right"), mx.metric.CrossEntropy(name="wrong")])
    run = mxtrain.train(
        *QUICK,
        "trainer.monitor=val/never",
        model=network(mx),
        dataset=(X, Y),
        dir=tmp_path,
        metric=[composite, (never, "max")],
        callbacks=[lambda row: True, Stopping(), StoppingAction()],
    )
    assert run.state == "finished" and run.best is None and run.status["step"] == 4
    assert run.metrics["val/right"] == pytest.approx(run.metrics["val/accuracy"])
    assert np.isnan(run.metrics["val/never"])
    said = caplog.text + (tmp_path / "train.log").read_text()
    for name in ("RowCallback.on_steps", "Stopping.on_steps", "StoppingAction.before_step"):
        assert f"{name} returned True, which stops nothing" in said
    assert "a callback cannot stop a run. Give an mxtrain.callback.Action, whose hooks call run.stop(REASON)" in said
    assert "val/never was no finite number at each of the 3 validations so far" in said


def never(target_N: np.ndarray, prediction_N: np.ndarray) -> float:
    return float("nan")


def raising(row: Any) -> None:
    raise StopIteration


class RaisingAction(Action):
    def before_step(self, run: Any) -> None:
        raise StopIteration


@pytest.mark.parametrize(
    "callback, said",
    [
        (raising, "raised StopIteration: a callback cannot stop a run. Give an mxtrain.callback.Action"),
        (RaisingAction(), "RaisingAction.before_step raised StopIteration: call run.stop(REASON) to stop the run"),
    ],
)
def test_stop_iteration_is_reported_as_an_error(mx: Any, callback: Any, said: str, tmp_path: Any) -> None:
    run = mxtrain.train(*QUICK, model=network(mx), dataset=(X, Y), callbacks=[callback], dir=tmp_path)
    assert run.state == "failed" and said in run.cause


def mape(target_N: np.ndarray, prediction_N: np.ndarray) -> float:
    return float((abs(target_N - prediction_N.ravel()) / abs(target_N)).mean())


def test_best_checkpoint_has_the_lowest_error(mx: Any, tmp_path: Any) -> None:
    run = mxtrain.train(
        *QUICK,
        "trainer.monitor=val/mape",
        "optimizer.lr=0.05",
        "checkpoint.keep_top=2",
        model=network(mx, 1),
        dataset=(X, X.sum(axis=1) + 10),
        metric={"mape": (mape, "min")},
        dir=tmp_path,
    )
    values = {row["step"]: row["mape"] for row in run.history_rows() if row["split"] == "val"}
    assert run.best["step"] == min(values, key=values.get) and len(set(values.values())) == 4
    assert run.status["direction"] == "min"


def exported(mx: Any, folder: Any) -> Tuple[str, Any]:
    original = network(mx, 5)
    original.initialize(mx.init.Xavier())
    original.hybridize()
    original(mx.nd.array(X[:2]))
    original.export(str(folder / "mine"))
    return str(folder / "mine-symbol.json"), original


@pytest.mark.filterwarnings("ignore")  # MXNet's, when it imports a symbol and its parameters
def test_values_of_a_symbol_block_are_kept_and_only_its_new_head_is_initialized(mx: Any, tmp_path: Any) -> None:
    file, original = exported(mx, tmp_path)
    frozen = (
        "trainer.max_steps=1",
        "trainer.max_epochs=null",
        "optimizer=sgd",
        "optimizer.lr=1e-30",
        "optimizer.wd=0",
        "logger=[jsonl]",
    )

    def values(block: Any) -> Any:
        return sorted((value.data().asnumpy() for value in block.collect_params().values()), key=lambda one: one.shape)

    for number, head in enumerate((False, True)):
        block = mx.gluon.SymbolBlock.imports(file, ["data"], file.replace("-symbol.json", "-0000.params"))
        whole = mx.gluon.nn.HybridSequential() if head else block
        if head:
            whole.add(block, mx.gluon.nn.Dense(5))
        run = mxtrain.train(*frozen, model=whole, dataset=(X, np.arange(60) % 5), dir=tmp_path / f"run{number}")
        assert run.state == "finished", run.cause
        kept = values(run.network[0] if head else run.network)
        for found, expected in zip(kept, values(original)):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-28)  # one step with that learning rate
    bare = mx.gluon.SymbolBlock.imports(file, ["data"])
    run = mxtrain.train(*frozen, model=bare, dataset=(X, np.arange(60) % 5), dir=tmp_path / "bare")
    assert run.state == "finished", run.cause
    for found in values(run.network):
        assert (np.abs(found) > 1e-28).any() == (found.ndim > 1), "weights by model.init, biases 0"
