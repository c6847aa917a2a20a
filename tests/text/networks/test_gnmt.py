"""GNMT: attention and the whole network against NumPy, lengths, chunks, and one token at a time."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np
import pydantic
import pytest
from dropouts import count_dropouts

from mxtrain.engine.backend import mx, nd
from mxtrain.model.parameters import distinct_parameters
from mxtrain.text.translation.gnmt import Gnmt

V, W, S, T, B, H = 13, 11, 7, 5, 3, 6
SHAPES = ((S,), (), (T,), (T,))
LENGTHS = [S, 3, 5]
TIES = ("all", "target", "none")


def build(tied: str = "none", attention: str = "luong", chunks: Any = 1, **settings: Any) -> Any:
    model = Gnmt(num_layers=3, units=H, tied=tied, attention=attention, output_chunks=chunks, **settings)  # type: ignore[arg-type]
    network = model.build_translator(V if tied == "all" else W, SHAPES, V, tied == "all")
    mx.random.seed(1)
    network.initialize(mx.init.Xavier())
    for parameter in network.collect_params().values():
        parameter.set_data(parameter.data() + mx.nd.random.normal(0, 0.3, parameter.shape))
    return network


def build_batch() -> Tuple[Any, ...]:
    rng = np.random.RandomState(0)
    source, target = rng.randint(0, V, (B, S)), rng.randint(0, W, (B, T))
    label = np.where(np.arange(T) < np.array([[5], [2], [4]]), rng.randint(0, W, (B, T)), -1)
    return nd.array(source, dtype="int32"), nd.array(LENGTHS), nd.array(target, dtype="int32"), nd.array(label)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class Plain:
    """The equations for one sentence, in NumPy."""

    def __init__(self, network: Any) -> None:
        self._p: Dict[str, np.ndarray] = {
            name: p.data().asnumpy().astype(np.float64) for name, p in distinct_parameters(network).items()
        }

    def lstm(self, path: str, x: np.ndarray) -> np.ndarray:
        p, state, cell, found = self._p, np.zeros(H), np.zeros(H), []
        for row in x:
            gates = p[f"{path}.cell.i2h_weight"] @ row + p[f"{path}.cell.i2h_bias"]
            gates = gates + p[f"{path}.cell.h2h_weight"] @ state + p[f"{path}.cell.h2h_bias"]
            enter, forget, new, leave = np.split(gates, 4)
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
            state = sigmoid(leave) * np.tanh(cell)
            found.append(state)
        return np.array(found)

    def attend(self, query: np.ndarray, value: np.ndarray, attention: str) -> np.ndarray:
        p, key = self._p, value @ self._p["keys.weight"].T
        if attention == "luong":
            score = query @ key.T * p["attention.scale"].item()
        else:
            asked = query @ p["attention.query.weight"].T + p["attention.query.bias"]
            score = (np.tanh(asked[:, None] + key[None]) @ p["attention.score.weight"].T)[:, :, 0]
        weight = np.exp(score - score.max(-1, keepdims=True))
        return weight / weight.sum(-1, keepdims=True) @ value

    def log_p(self, source: np.ndarray, target: np.ndarray, attention: str) -> np.ndarray:
        p = self._p
        x = p["source_table"][source]
        turned = self.lstm("backward_layer", x[::-1])[::-1]
        x = self.lstm("encoder.1", np.concatenate([self.lstm("encoder.0", x), turned], axis=1))
        x = x + self.lstm("encoder.2", x)
        table = p.get("target_table", p["source_table"])
        y = self.lstm("decoder.0", table[target])
        context = self.attend(y, x, attention)
        y = self.lstm("decoder.1", np.concatenate([y, context], axis=1))
        y = y + self.lstm("decoder.2", np.concatenate([y, context], axis=1))
        score = y @ p.get("output_table", table).T + p["output.bias"]
        score = score - score.max(-1, keepdims=True)
        return score - np.log(np.exp(score).sum(-1, keepdims=True))


@pytest.mark.parametrize("attention", ["luong", "bahdanau"])
@pytest.mark.parametrize("tied", TIES)
def test_network_follows_the_equations(tied: str, attention: str) -> None:
    """Padding changes nothing, in either direction."""
    network = build(tied, attention)
    source, length, target, label = inputs = build_batch()
    loss, mean = (array.asnumpy() for array in network(*inputs))
    plain = Plain(network)
    for row in range(B):
        log_p = plain.log_p(source.asnumpy()[row, : LENGTHS[row]], target.asnumpy()[row], attention)
        token = label.asnumpy()[row].astype(int)
        counts = token >= 0
        np.testing.assert_allclose(loss[row], -log_p[np.arange(T), token] * counts, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mean[row], -log_p.mean(-1) * counts, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["luong", "bahdanau"])
@pytest.mark.parametrize("tied", TIES)
def test_one_token_after_the_other_gives_the_same(tied: str, attention: str) -> None:
    network = build(tied, attention, chunks=2)
    source, length, target, label = build_batch()
    wanted = network(source, length, target, label)[0].asnumpy()
    order = np.array([2, 0, 1])
    fixed, moving = network.initial_state(source, length)
    for place in range(T):
        rows = np.arange(B) if place < 2 else np.repeat(order, 2)  # two beams of each sentence
        if place == 2:
            fixed = [nd.take(array, nd.array(order)) for array in fixed]
            moving = [nd.take(array, nd.array(rows)) for array in moving]
        log_p, moving = network.step(nd.array(target.asnumpy()[rows, place], dtype="int32"), place, fixed, moving)
        token = label.asnumpy()[rows, place].astype(int)
        found = -log_p.asnumpy()[np.arange(len(rows)), token] * (token >= 0)
        np.testing.assert_allclose(found, wanted[rows, place], rtol=1e-4, atol=1e-5)


def test_dropout_before_each_layer_and_the_output() -> None:
    """Embeddings of both texts, two layers above the first of the encoder and of the decoder, the context and the
    output layer."""
    assert count_dropouts(build(dropout=0.1), 4, 0.1) == 2 + 2 + 2 + 1 + 1


def test_one_layer_has_no_context_and_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="num_layers"):
        Gnmt(num_layers=1)
