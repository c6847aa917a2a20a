"""GPT: sizes as published, nothing looks ahead, the same by MXNet's operators and one token at a time."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Tuple

import numpy as np
import pytest
from dropouts import count_dropouts

from mxtrain.engine.backend import autograd, mx, native_operators, nd
from mxtrain.errors import ConfigError
from mxtrain.model.networks import attention, bert
from mxtrain.model.parameters import distinct_parameters
from mxtrain.text.language_modeling.gpt import SIZES, Gpt
from mxtrain.text.networks import gpt

V, T, B = 13, 9, 3


def build(length: int = T, **settings: Any) -> Any:
    given = {"num_layers": 2, "units": 12, "num_heads": 3, "dropout": 0.0, **settings}
    network = Gpt(**given).build_text(V, ((length,), (length,)), V)
    mx.random.seed(1)
    network.initialize()
    for parameter in network.collect_params().values():  # also those that begin as zeros
        parameter.set_data(parameter.data() + mx.nd.random.normal(0, 0.3, parameter.shape))
    return network


def build_batch(length: int = T) -> Tuple[Any, Any]:
    rng = np.random.RandomState(0)
    return nd.array(rng.randint(0, V, (B, length)), dtype="int32"), nd.array(rng.randint(-1, V, (B, length)))


def with_gradients(network: Any, inputs: Tuple[Any, Any]) -> Dict[str, np.ndarray]:
    with autograd.record():
        loss = network(*inputs)
    loss.backward()
    found = {name: p.grad().asnumpy() for name, p in distinct_parameters(network).items()}
    return {"loss": loss.asnumpy(), **found}


@pytest.mark.skipif(native_operators().path is None, reason=native_operators().why)
@pytest.mark.parametrize("length", [T, 140], ids=["one block", "two blocks"])
def test_mxnets_operators_give_the_same(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    own = with_gradients(build(length, gelu="tanh"), build_batch(length))
    for module in (attention, bert, gpt):
        monkeypatch.setattr(module, "native_operators", lambda: SimpleNamespace(path=None))
    other = with_gradients(build(length, gelu="tanh"), build_batch(length))
    for name, array in own.items():
        np.testing.assert_allclose(array, other[name], rtol=2e-4, atol=2e-4 * np.abs(other[name]).max(), err_msg=name)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dtype, digits", [("float32", 2e-6), ("float64", 1e-12)])
def test_both_forms_of_gelu_equal_numpy(own: bool, dtype: str, digits: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if not own:
        monkeypatch.setattr(gpt, "native_operators", lambda: SimpleNamespace(path=None))
    x = np.concatenate([np.linspace(-12, 12, 4801), [0.0, -1e4, 1e4, 1e15, -1e15]])
    gradient_of = {
        "tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "erf": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    }
    for form, function in gradient_of.items():
        given = nd.array(x, dtype=dtype)
        given.attach_grad()
        with autograd.record():
            found = gpt.gelu(nd, nd.identity(given), form)  # type: ignore[arg-type]
        found.backward()
        if form == "erf":  # MXNet's is of single precision in float64, too
            digits = max(digits, 1e-6)
        np.testing.assert_allclose(found.asnumpy(), function(x), rtol=digits, atol=digits * 4)
        near = np.abs(x) < 12
        slope = (function(x + 1e-5) - function(x - 1e-5)) / 2e-5
        np.testing.assert_allclose(given.grad.asnumpy()[near], slope[near], atol=max(4 * digits, 1e-8))
        np.testing.assert_allclose(given.grad.asnumpy()[~near], x[~near] > 0, atol=1e-30)
    at = gpt.gelu(nd, nd.array([1.0]), "tanh").asscalar(), gpt.gelu(nd, nd.array([1.0]), "erf").asscalar()
    np.testing.assert_allclose(at, (0.841192, 0.841345), atol=1e-6)


def test_the_setting_decides_the_form_and_older_descriptions_have_the_exact_one() -> None:
    tanh, erf = (build(gelu=form)(*build_batch()).asnumpy() for form in ("tanh", "erf"))
    assert (tanh != erf).any() and Gpt().gelu == "erf"
    np.testing.assert_array_equal(build()(*build_batch()).asnumpy(), erf)
    assert "gelu: tanh" in (Path(__file__).resolve().parents[3] / "conf/model/gpt.yaml").read_text()


@pytest.mark.parametrize("own", [True, False])
def test_dropout_of_embeddings_attention_and_residuals(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not own:
        monkeypatch.setattr(attention, "native_operators", lambda: SimpleNamespace(path=None))
    assert count_dropouts(build(dropout=0.1), 2, 0.1) == 1 + 2 * 3


@pytest.mark.parametrize("place", [0, 4, T - 1])
def test_attention_is_causal(place: int) -> None:
    network = build()
    token, label = build_batch()
    before = network(token, label).asnumpy()
    token[:, place] = (token[:, place] + 1) % V
    changed = (network(token, label).asnumpy() != before) & (label.asnumpy() >= 0)
    assert not changed[:, :place].any() and changed[:, place:].any()


def test_one_token_after_the_other_gives_the_same() -> None:
    network = build()
    token, label = build_batch()
    wanted, memory = network(token, label).asnumpy(), network.initial_state(B, mx.cpu())
    for place in range(T):
        score_BV, memory = network.step(token[:, place], place, memory)
        label_B = label.asnumpy()[:, place].astype(int)
        found = -nd.log_softmax(score_BV).asnumpy()[np.arange(B), np.maximum(label_B, 0)] * (label_B >= 0)
        np.testing.assert_allclose(found, wanted[:, place], rtol=1e-4, atol=1e-5)


def test_sizes_are_the_published_ones() -> None:
    counts = {}
    for size in ("gpt2", "gpt2-medium"):
        network = Gpt(size=size).build_text(50257, ((16,), (16,)), 50257)
        counts[size] = sum(int(np.prod(p.shape)) for p in network.collect_params().values())
    assert counts == {"gpt2": 124_439_808, "gpt2-medium": 354_823_168}
    assert set(SIZES) == {"small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes at most 1024 tokens. Type dataset.max_length=1024, or model.max"):
        Gpt(size="gpt2").build_text(V, ((2000,), (2000,)), V)
    with pytest.raises(ValueError, match="num_heads must divide units"):
        Gpt(units=10, num_heads=3)
