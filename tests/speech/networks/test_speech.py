"""Networks for CTC: scores do not depend on padding, and shapes are as their descriptions say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.speech.conformer import Conformer
from mxtrain.speech.deep_speech2 import DeepSpeech2
from mxtrain.speech.networks.conformer import apply_rotary

RECURRENT = DeepSpeech2(channels=[3, 4, 5], units=6, num_layers=2, dropout=0.0)
ATTENDING = Conformer(channels=[3, 4], units=8, hidden_size=12, num_heads=2, num_layers=2, kernel=5, dropout=0.0)


def built(model: Any) -> Any:
    mx.random.seed(0)
    network = model.build(7, (64, 12))
    network.initialize(mx.init.Normal(0.3))
    return network


@pytest.mark.parametrize("model", [RECURRENT, ATTENDING], ids=["deep_speech2", "conformer"])
@pytest.mark.parametrize("is_hybrid", [False, True])
def test_scores_and_gradients_match_the_sample_alone(model: Any, is_hybrid: bool) -> None:
    network = built(model)
    if is_hybrid:
        network.hybridize(static_alloc=True)
    rng = np.random.RandomState(0)
    lengths = [64, 37, 5]
    frames = [rng.randn(length, 12).astype(np.float32) for length in lengths]
    weights = [rng.randn(model.count_scores(length), 7).astype(np.float32) for length in lengths]

    def of(rows: Any, width: int) -> Any:
        """Scores of samples that are padded to a width with something, and the gradients of all parameters."""
        padded = np.zeros((len(rows), width, 12), np.float32)
        for row, index in enumerate(rows):
            padded[row, : lengths[index]] = frames[index]
        with autograd.record():
            scores = network(nd.array(padded), nd.array([lengths[index] for index in rows]))
            assert scores.shape == (len(rows), model.count_scores(width), 7)
            loss = sum(
                (scores[row, : len(weights[index])] * nd.array(weights[index])).sum() for row, index in enumerate(rows)
            )
        loss.backward()
        found = [scores[row, : len(weights[index])].asnumpy() for row, index in enumerate(rows)]
        return found, {name: one.grad().asnumpy().copy() for name, one in network.collect_params().items()}

    together, gradients = of([0, 1, 2], 80)
    alone = [of([index], lengths[index]) for index in range(3)]
    for index in range(3):
        np.testing.assert_allclose(together[index], alone[index][0][0], rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        wanted = sum(one[1][name] for one in alone)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=2e-4 * max(abs(wanted).max(), 1), err_msg=name)


def test_products_of_queries_and_keys_depend_on_their_distance_alone() -> None:
    rng, units, heads, size = np.random.RandomState(0), 12, 2, 6
    same = rng.randn(3 * units)
    found = apply_rotary(nd, nd.array(np.tile(same, (9, 1, 1))), units, heads).asnumpy()[:, 0]
    np.testing.assert_allclose(found[:, 2 * units :], np.tile(same[2 * units :], (9, 1)), rtol=1e-6)
    # Pairs of units as complex numbers, turned by place * 10000 ** (-number / 3).
    turn = np.exp(1j * np.arange(9)[:, None] * 10_000.0 ** (-np.arange(3) / 3))
    for part in range(2 * heads):
        head = same[part * size : (part + 1) * size]
        wanted = (head[:3] + 1j * head[3:]) * turn
        given = found[:, part * size : part * size + 3] + 1j * found[:, part * size + 3 : (part + 1) * size]
        np.testing.assert_allclose(given, wanted, atol=1e-5)
    products = found[:, :size] @ found[:, units : units + size].T
    for distance in range(-8, 9):
        np.testing.assert_allclose(np.diff(np.diag(products, distance)), 0, atol=1e-4)


def test_the_number_of_scores_is_rounded_up() -> None:
    assert [RECURRENT.count_scores(frames) for frames in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    "kind, given, said",
    [
        (DeepSpeech2, {"time_strides": [2]}, "must have a number for each of channels"),
        (DeepSpeech2, {"time_kernels": [4, 3, 3]}, "must be odd"),
        (Conformer, {"kernel": 4}, "must be odd"),
        (Conformer, {"num_heads": 5}, "num_heads must divide units"),
        (Conformer, {"num_heads": 32}, "units / num_heads must be even"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(kind: Any, given: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        kind(**given)
