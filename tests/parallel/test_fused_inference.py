"""Prediction with joined operators is that of the network, or nothing is joined."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.parallel.fused_inference import FusedInference


def residual(before_activation: bool) -> Any:
    """Three residual blocks; MXNet joins those of ResNet v2 to a graph with wrong sums."""
    from gluoncv.model_zoo import get_model

    return get_model("cifar_resnet20_v2" if before_activation else "cifar_resnet20_v1")


def initialized(made: Any, size: int) -> nd.NDArray:
    """Initialises a network with statistics that its batch norms must use; returns images."""
    made.initialize()
    image_BCHW = nd.array(np.random.RandomState(0).rand(4, 3, size, size))
    made(image_BCHW)
    for name, parameter in made.collect_params().items():
        if name.endswith(("running_var", "gamma")):
            parameter.set_data(nd.random.uniform(0.5, 1.5, shape=parameter.shape))
    made.hybridize(static_alloc=True, static_shape=True)
    return image_BCHW


@pytest.mark.slow
def test_joined_operators_give_the_numbers_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    made = residual(before_activation=False)
    image_BCHW = initialized(made, 32)
    fused = FusedInference(made)
    wanted = made(image_BCHW).asnumpy()
    assert (fused(0, [image_BCHW])[0].asnumpy() == wanted).all(), "the first batch is the network's own"
    monkeypatch.setattr(fused, "_network", None)  # the second is of the joined operators
    found = fused(0, [image_BCHW])[0].asnumpy()
    assert 0 < np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max(), "joined operators round differently"


@pytest.mark.parametrize("kind", ["wrong", "fails"])
def test_layers_that_mxnet_computes_wrongly_are_not_joined(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise mx.MXNetError("Shape inconsistent")

    made = residual(before_activation=kind == "wrong")
    image_BCHW = initialized(made, 32)
    fused, wanted = FusedInference(made), made(image_BCHW).asnumpy()
    if kind == "fails":
        monkeypatch.setattr(fused, "_operator", fail)
    with caplog.at_level(logging.WARNING, "mxtrain"):
        for _ in range(3):
            assert (fused(0, [image_BCHW])[0].asnumpy() == wanted).all()
    assert caplog.text.count("fuse=true has no effect on batches of shape ((4, 3, 32, 32),)") == 1
    assert ("relative error" if kind == "wrong" else "Shape inconsistent") in caplog.text


@pytest.mark.zoo
def test_eval_and_predict_fuse_and_refuse_unfusable_networks(tmp_path: Path) -> None:
    def command(*words: str) -> Any:
        return subprocess.run([sys.executable, "-m", "mxtrain", *words], capture_output=True, text=True, cwd=tmp_path)

    made = command("debug=fast", "model=resnet", "hydra.run.dir=run")
    assert made.returncode == 0, made.stderr
    values = []
    for words in ([], ["fuse=true"]):
        done = command("eval", "run", "split=val", f"output={tmp_path / 'measured'}", *words)
        assert done.returncode == 0 and "no effect" not in done.stderr, done.stderr
        values.append(json.loads((tmp_path / "measured" / "metrics.json").read_text()))
        done = command("predict", "run", "sample=3", *words)
        assert done.returncode == 0, done.stderr
    assert values[1]["loss"] == pytest.approx(values[0]["loss"], rel=1e-5)
    assert values[1]["accuracy"] == values[0]["accuracy"]
    done = command("eval", "run", "fuse=true", "parallel=pipeline")
    assert done.returncode == 2 and "parallel=single" in done.stderr
