"""The Transformer: against NumPy, the same by MXNet's operators, in chunks, and one token at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, List, Tuple

import numpy as np
import pydantic
import pytest
from dropouts import count_dropouts

from mxtrain.engine.backend import autograd, mx, native_operators, nd
from mxtrain.errors import ConfigError
from mxtrain.model.networks import attention, bert
from mxtrain.model.parameters import distinct_parameters
from mxtrain.text.translation.networks.transformer import sinusoid
from mxtrain.text.translation.transformer import SIZES, Transformer

V, W, S, T, B, U, N = 13, 11, 7, 5, 3, 12, 3
SHAPES = ((S,), (), (T,), (T,))
LENGTHS = [S, 3, 5]


def build(tied: str = "all", chunks: Any = 1, dtype: str = "float32", **settings: Any) -> Any:
    given = {"num_layers": 2, "units": U, "num_heads": N, "hidden_size": 20, "output_chunks": chunks, **settings}
    is_joint = tied == "all"
    size = V if is_joint else W
    network = Transformer(tied=tied, **given).build_translator(size, SHAPES, V, is_joint)  # type: ignore[arg-type]
    mx.random.seed(1)
    network.initialize(mx.init.Xavier())
    network.cast(dtype)
    for parameter in network.collect_params().values():  # also those that begin as zeros
        parameter.set_data(parameter.data() + mx.nd.random.normal(0, 0.2, parameter.shape).astype(dtype))
    return network


def build_batch(dtype: str = "float32") -> Tuple[Any, ...]:
    rng = np.random.RandomState(0)
    source, target = rng.randint(0, V, (B, S)), rng.randint(0, W, (B, T))
    label = np.where(np.arange(T) < np.array([[5], [2], [4]]), rng.randint(0, W, (B, T)), -1)
    tokens = [nd.array(array, dtype="int32") for array in (source, target)]
    return tokens[0], nd.array(LENGTHS, dtype=dtype), tokens[1], nd.array(label, dtype=dtype)


def with_gradients(network: Any, inputs: Tuple[Any, ...]) -> Dict[str, np.ndarray]:
    with autograd.record():
        loss, mean = network(*inputs)
        total = loss + 0.3 * mean
    total.backward()
    found = {name: p.grad().asnumpy() for name, p in distinct_parameters(network).items()}
    return {"loss": loss.asnumpy(), "mean": mean.asnumpy(), **found}


class Plain:
    """The paper's equations for one sentence, in NumPy."""

    def __init__(self, network: Any, norm_first: bool) -> None:
        self._p = {name: p.data().asnumpy() for name, p in distinct_parameters(network).items()}
        self._norm_first = norm_first

    def dense(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self._p[f"{name}.weight"].T + self._p[f"{name}.bias"]

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return scaled * self._p[f"{name}.gamma"] + self._p[f"{name}.beta"]

    def attend(self, query: np.ndarray, key: np.ndarray, value: np.ndarray, causal: bool) -> np.ndarray:
        heads: List[np.ndarray] = []
        for head in range(N):
            own = slice(head * U // N, (head + 1) * U // N)
            score = query[:, own] @ key[:, own].T / np.sqrt(U // N)
            if causal:
                score[np.triu_indices(len(score), 1)] = -np.inf
            weight = np.exp(score - score.max(-1, keepdims=True))
            heads.append(weight / weight.sum(-1, keepdims=True) @ value[:, own])
        return np.concatenate(heads, axis=1)

    def part(self, name: str, x: np.ndarray, compute: Any) -> np.ndarray:
        if self._norm_first:
            return x + compute(self.norm(name, x))
        return self.norm(name, x + compute(x))

    def layer(self, path: str, x: np.ndarray, source: Any = None) -> np.ndarray:
        def to_itself(x: np.ndarray) -> np.ndarray:
            query, key, value = np.split(self.dense(f"{path}.qkv", x), 3, axis=1)
            return self.dense(f"{path}.self_projection", self.attend(query, key, value, source is not None))

        def to_source(x: np.ndarray) -> np.ndarray:
            key, value = np.split(self.dense(f"{path}.key_value", source), 2, axis=1)
            context = self.attend(self.dense(f"{path}.query", x), key, value, False)
            return self.dense(f"{path}.cross_projection", context)

        def feed_forward(x: np.ndarray) -> np.ndarray:
            return self.dense(f"{path}.ffn_2", np.maximum(self.dense(f"{path}.ffn_1", x), 0))

        x = self.part(f"{path}.self_norm", x, to_itself)
        x = x if source is None else self.part(f"{path}.cross_norm", x, to_source)
        return self.part(f"{path}.ffn_norm", x, feed_forward)

    def embed(self, table: str, token: np.ndarray) -> np.ndarray:
        place, pair = np.arange(len(token))[:, None], np.arange(U // 2)
        angle = place / 10000 ** (2 * pair / U)
        sinusoid = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(len(token), U)
        return self._p[table][token] * np.sqrt(U) + sinusoid

    def log_p(self, source: np.ndarray, target: np.ndarray, tables: Tuple[str, str, str]) -> np.ndarray:
        x, y = self.embed(tables[0], source), self.embed(tables[1], target)
        for number in range(2):
            x = self.layer(f"encoder.{number}", x)
        x = self.norm("encoder_norm", x) if self._norm_first else x
        for number in range(2):
            y = self.layer(f"decoder.{number}", y, x)
        y = self.norm("decoder_norm", y) if self._norm_first else y
        score = y @ self._p[tables[2]].T
        score = score - score.max(-1, keepdims=True)
        return score - np.log(np.exp(score).sum(-1, keepdims=True))


TABLES = {
    "all": ("embedding.weight",) * 3,
    "target": ("embedding.weight", "target_embedding.weight", "target_embedding.weight"),
    "none": ("embedding.weight", "target_embedding.weight", "table"),
}


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("tied", TABLES)
def test_network_follows_the_equations_of_the_paper(tied: str, norm_first: bool) -> None:
    """In float64, so that nothing is but what is computed; padding changes nothing."""
    network = build(tied, dtype="float64", norm_first=norm_first)
    source, length, target, label = inputs = build_batch("float64")
    loss, mean = (array.asnumpy() for array in network(*inputs))
    plain = Plain(network, norm_first)
    for row in range(B):
        own = source.asnumpy()[row, : LENGTHS[row]]
        log_p = plain.log_p(own, target.asnumpy()[row], TABLES[tied])
        token = label.asnumpy()[row].astype(int)
        counts = token >= 0
        np.testing.assert_allclose(loss[row], -log_p[np.arange(T), token] * counts, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(mean[row], -log_p.mean(-1) * counts, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(native_operators().path is None, reason=native_operators().why)
@pytest.mark.parametrize("norm_first", [True, False])
def test_mxnets_operators_give_the_same(monkeypatch: pytest.MonkeyPatch, norm_first: bool) -> None:
    own = with_gradients(build(norm_first=norm_first), build_batch())
    for module in (attention, bert):
        monkeypatch.setattr(module, "native_operators", lambda: SimpleNamespace(path=None))
    other = with_gradients(build(norm_first=norm_first), build_batch())
    for name, array in own.items():
        np.testing.assert_allclose(array, other[name], rtol=2e-4, atol=2e-4 * np.abs(other[name]).max(), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [2, 3, 5])
def test_chunks_do_not_affect_results(chunks: int) -> None:
    """Covers lengths divisible by the number of chunks or not, longer and shorter than it."""
    for length in (T, 4, 1):
        inputs = (*build_batch()[:2], *(array[:, :length] for array in build_batch()[2:]))
        whole, cut = (with_gradients(build(chunks=count), inputs) for count in (1, chunks))
        for name, array in whole.items():
            np.testing.assert_allclose(cut[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("tied, own", [*((tied, True) for tied in TABLES), ("all", False)])
def test_one_token_after_the_other_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, tied: str, norm_first: bool, own: bool
) -> None:
    """With rows that are repeated and change places, as beams do; with our operators, where they are, and MXNet's."""
    if not own:
        monkeypatch.setattr(attention, "native_operators", lambda: SimpleNamespace(path=None))
    network = build(tied, norm_first=norm_first)
    source, length, target, label = build_batch()
    wanted = network(source, length, target, label)[0].asnumpy()
    order = np.array([2, 0, 1])
    fixed, moving = network.initial_state(source, length)
    assert not moving and all(len(array) == B for array in fixed)
    for place in range(T):
        rows = np.arange(B) if place < 2 else np.repeat(order, 2)  # two beams of each sentence
        if place == 2:
            fixed = [nd.take(array, nd.array(order)) for array in fixed]
            moving = [nd.take(array, nd.array(rows)) for array in moving]
        log_p, moving = network.step(nd.array(target.asnumpy()[rows, place], dtype="int32"), place, fixed, moving)
        assert log_p.dtype == np.float32 and all(len(array) == len(rows) for array in moving)
        token = label.asnumpy()[rows, place].astype(int)
        found = -log_p.asnumpy()[np.arange(len(rows)), token] * (token >= 0)
        np.testing.assert_allclose(found, wanted[rows, place], rtol=1e-4, atol=1e-5)


def test_positions_have_sinusoids() -> None:
    network = build()
    found = network._positioned(nd, nd.zeros((300, 1, U))).asnumpy()[:, 0]
    np.testing.assert_allclose([sinusoid(position, network._sizes) for position in range(300)], found, atol=1e-4)


@pytest.mark.parametrize("norm_first", [True, False])
def test_dropout_of_embeddings_and_residuals(norm_first: bool) -> None:
    """Covers embeddings of both texts, two parts of each encoder layer and three of each decoder layer."""
    assert count_dropouts(build(norm_first=norm_first, dropout=0.1), 4, 0.1) == 2 + 2 * (2 + 3)


def test_sizes_are_the_published_ones() -> None:
    """Table 3 of the paper: 65 and 213 million, with 37,000 tokens."""
    counts = {}
    for size in ("base", "big"):
        network = Transformer(size=size).build_translator(37000, SHAPES, 37000, True)  # type: ignore[arg-type]
        counts[size] = sum(int(np.prod(p.shape)) for p in network.collect_params().values())
    assert counts["base"] // 10**6 in (62, 63, 64, 65) and counts["big"] // 10**6 in range(209, 216), counts
    assert set(SIZES) == {"small", "base", "big"}


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="num_heads=5 and 2 must divide units=128"):
        Transformer(num_heads=5)
    with pytest.raises(ConfigError, match="model.tied=all: source and target have vocabularies of their own"):
        Transformer(tied="all").build_translator(W, SHAPES, V, False)
