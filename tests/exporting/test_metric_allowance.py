"""Metrics of predictions that are nearly tied: differences that noise of the proven error explains are allowed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import numpy as np
import pytest
import running

import mxtrain
from mxtrain.engine.backend import nd
from mxtrain.errors import NotProven
from mxtrain.exporting.proof import DisturbedStrategy, OnnxStrategy, compare_metrics
from mxtrain.parallel.base import IdLimits, Strategy

MXNET, ONNX = {"map": 0.5, "loss": 1.0, "samples_per_s": 5.0}, {"map": 0.53, "loss": 1.0, "samples_per_s": 9.0}


def test_difference_of_a_metric_is_allowed_as_far_as_noise_moves_it() -> None:
    seeds: List[int] = []

    def measure(moved: float) -> Any:
        def measure_disturbed(seed: int) -> Dict[str, float]:
            seeds.append(seed)
            return {"map": 0.5 - moved if seed == 2 else 0.5, "loss": 1.0}

        return measure_disturbed

    assert compare_metrics(MXNET, ONNX, measure(0.0101))["map"] == {"mxnet": 0.5, "onnxruntime": 0.53}
    assert seeds == [0, 1, 2, 3]
    with pytest.raises(NotProven, match=r"map is 0\.5 by MXNet and 0\.53 by onnxruntime"):
        compare_metrics(MXNET, ONNX, measure(0.0099))
    with pytest.raises(NotProven, match="loss"):  # noise does not move this one
        compare_metrics(MXNET, {"map": 0.5, "loss": 1.1}, measure(0.1))
    with pytest.raises(NotProven):
        compare_metrics(MXNET, ONNX)
    with pytest.raises(NotProven):
        compare_metrics(MXNET, {"map": float("nan"), "loss": 1.0}, measure(0.1))


def test_equal_metrics_are_not_measured_again() -> None:
    def measure_disturbed(seed: int) -> Any:
        raise AssertionError("measured")

    close = {"map": 0.5 * (1 + 1e-5), "loss": 1.0 - 1e-5}
    assert compare_metrics(MXNET, close, measure_disturbed)["loss"]["mxnet"] == 1.0
    assert compare_metrics({"auc": float("nan")}, {"auc": float("nan")}, measure_disturbed)


class StrategyOf(Strategy):
    """A strategy that predicts given outputs."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs
        self.objective, self.layout, self.values, self.trainable, self.reductions = None, "one device", {}, [], []  # type: ignore[assignment]

    def predict(self, inputs: Any) -> Any:
        return self.outputs


def test_fixed_sizes_are_those_of_the_second_axes() -> None:
    shapes = {"users": ["batch"], "items": ["batch", 7], "history": ["batch", "length"]}
    session = SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name=n, shape=s) for n, s in shapes.items()])
    network: Any = SimpleNamespace(input_names=["items", "history", "users", "unread"])
    strategy = StrategyOf(())
    strategy.id_limits = IdLimits(distinct=5)
    assert OnnxStrategy(strategy, network, session, True).id_limits == IdLimits(distinct=5, fixed={0: 7})


def test_noise_has_the_size_of_the_error_and_leaves_integers() -> None:
    outputs = (nd.array(np.full((200, 5), -4.0), dtype="float32"), nd.array([1, 2], dtype="int32"))
    strategy = StrategyOf(outputs)
    found, ints = DisturbedStrategy(strategy, 1e-3, 0).predict([])
    away = np.abs(found.asnumpy() + 4)
    assert 3.9e-3 < away.max() <= 4.001e-3 and away.min() < 1e-4 and found.dtype == np.float32
    assert ints.asnumpy().tolist() == [1, 2] and DisturbedStrategy(strategy, 1e-3, 0).layout == "one device"
    other = DisturbedStrategy(strategy, 1e-3, 1).predict([])[0].asnumpy()
    assert np.abs(other - found.asnumpy()).max() > 1e-3


@pytest.mark.slow
@pytest.mark.zoo
def test_a_detector_that_has_hardly_learned_is_exported(tmp_path: Path) -> None:
    """Its scores are nearly equal: voc_ap was 0.0176 by MXNet and 0.0191 by onnxruntime."""
    words = (
        "model.name=ssd_custom",
        "model.backbone=mobilenet0.25",
        "dataset.image_size=[64,64]",
        "dataset.num_train=64",
        "dataset.num_val=24",
        "dataset.batch_size=8",
        "trainer.max_steps=20",
    )
    running.train_here(tmp_path / "run", "task=detection", "model=ssd", *words, exit_code=75)
    report = mxtrain.load(tmp_path / "run").export(tmp_path / "out")
    assert max(report.errors.values()) < 1e-4 and report.metrics["voc_ap"]["mxnet"] < 0.1
