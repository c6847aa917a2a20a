"""The losses of the proof in PyTorch, which MXNet computes for both frameworks."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Sequence

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import MAX_LINE, NotProven, first_line
from mxtrain.exporting.pytorch import proof
from mxtrain.exporting.pytorch.proof import (
    SQUARES,
    load_module,
    loss_gradients,
    loss_of,
    output_errors,
    quiet,
    without_dropout,
)
from mxtrain.types import Batch


def trained_with(losses: Sequence[Any], weighted: bool = False, has_loss: bool = True) -> Any:
    """A trained network whose evaluator returns these losses."""
    form = SimpleNamespace(has_loss=has_loss)
    task = SimpleNamespace(export_form=lambda: form)
    evaluator = SimpleNamespace(losses=lambda batch, outputs: losses, weighted=weighted)
    return SimpleNamespace(description=SimpleNamespace(task=task), evaluator=evaluator)


def batch_of(size: int, *targets: Any) -> Batch:
    return Batch((nd.zeros((size, 1)),), tuple(map(nd.array, targets)), size)


def test_loss_is_the_mean_over_samples_or_over_their_weights() -> None:
    losses = [nd.array([2.0, 4.0]), nd.array([1.0, 3.0])]
    name, loss = loss_of(trained_with(losses[:1]))
    assert name == "the validation loss" and loss([], batch_of(2)).asscalar() == 3
    _, loss = loss_of(trained_with(losses, weighted=True))
    assert loss([], batch_of(2)).asscalar() == 1.5
    # Without any target all weights are 0.
    _, loss = loss_of(trained_with([nd.array([0.0]), nd.array([0.0])], weighted=True))
    assert loss([], batch_of(1)).asscalar() == 0


def test_networks_without_a_loss_get_the_squared_distance() -> None:
    name, loss = loss_of(trained_with([], has_loss=False))
    assert name == SQUARES
    assert loss([nd.array([[1.0, 5.0]])], batch_of(1, [[2.0, 3.0]])).asscalar() == pytest.approx((1 + 4) / 2)


def test_gradients_of_outputs() -> None:
    """The gradient of an output that the loss does not use is 0. Integer outputs reach the loss as integers."""

    def loss(outputs: Sequence[Any], batch: Batch) -> Any:
        assert [output.dtype.__name__ for output in outputs] == ["float32", "float32", "int32"]
        return (outputs[0] * batch.targets[0]).sum()

    outputs = [np.array([1.0, 2.0]), np.ones(3, np.float32), np.ones(2, np.int32)]
    value, gradients = loss_gradients(loss, outputs, batch_of(1, [3.0, 5.0]))
    assert value == 13
    assert [gradient.tolist() for gradient in gradients] == [[3, 5], [0, 0, 0], [0, 0]]


def test_rows_in_another_order_are_the_same_if_scores_decide_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row_BN2 = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    monkeypatch.setattr(proof, "compute", lambda network, inputs: [row_BN2[:, ::-1]])
    cases = [([], {"detections": row_BN2})]
    with pytest.raises(NotProven, match="detections by"):
        output_errors(None, ["detections"], cases)
    assert output_errors(None, ["detections"], cases, ["detections"]) == {"detections": 0}
    monkeypatch.setattr(proof, "compute", lambda network, inputs: [row_BN2[:, ::-1] + 1])
    with pytest.raises(NotProven, match="detections by"):
        output_errors(None, ["detections"], cases, ["detections"])


def test_network_that_cannot_be_computed_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(network: Any, inputs: Any) -> Any:
        raise TypeError("no kernel\nfor this type")

    monkeypatch.setattr(proof, "compute", compute)
    with pytest.raises(NotProven, match="^export: PyTorch cannot compute the network: no kernel$"):
        output_errors(None, ["output"], [([], {})])


def test_first_line_of_an_error() -> None:
    assert first_line(KeyError()) == "KeyError"
    assert first_line(ValueError("  a\nb")) == "a"
    assert len(first_line(ValueError("a" * 1000))) == MAX_LINE


def test_numbers_of_float32_are_of_the_type_of_the_proof(tmp_path: Path) -> None:
    """Casts to float32 are replaced in the symbol and in the code: one that is left would round all later numbers."""
    x = mx.sym.var("x")
    symbol = without_dropout(mx.sym.Dropout(mx.sym.cast(x, dtype="float32")) + mx.sym.cast(x, dtype="int32"), "float64")
    assert [node.get("attrs", {}).get("dtype") for node in json.loads(symbol.tojson())["nodes"]] == [
        None,
        "float64",
        None,
        "int32",
        None,
    ]
    assert "Dropout" not in symbol.tojson()
    (tmp_path / "model.py").write_text('WRITTEN = "torch.float32 torch.int32"')
    assert load_module(tmp_path / "model.py", "float64").WRITTEN == "torch.float64 torch.int32"
    assert load_module(tmp_path / "model.py").WRITTEN == "torch.float32 torch.int32"


def test_what_pytorch_prints_is_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet():
        print("graph")
        print("graph", file=sys.stderr)
        warnings.warn("a warning", UserWarning, stacklevel=1)
    assert capfd.readouterr() == ("", "")
