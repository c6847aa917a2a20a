"""The losses of the proof in PyTorch, which MXNet computes for both frameworks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Sequence

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.exporting.pytorch.proof import SQUARES, loss_gradients, loss_of
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
    assert name == "the loss of validation" and loss([], batch_of(2)).asscalar() == 3
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
    """Those that the loss does not read are 0, and integers stay integers."""

    def loss(outputs: Sequence[Any], batch: Batch) -> Any:
        assert [output.dtype.__name__ for output in outputs] == ["float32", "float32", "int32"]
        return (outputs[0] * batch.targets[0]).sum()

    outputs = [np.array([1.0, 2.0]), np.ones(3, np.float32), np.ones(2, np.int32)]
    value, gradients = loss_gradients(loss, outputs, batch_of(1, [3.0, 5.0]))
    assert value == 13
    assert [gradient.tolist() for gradient in gradients] == [[3, 5], [0, 0, 0], [0, 0]]
