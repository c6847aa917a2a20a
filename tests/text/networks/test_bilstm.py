"""LSTMs in both directions compute what they say: lengths count, dropout between layers acts, padding is nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dropouts import count_dropouts

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.model.networks.bilstm import BiLSTMLayer, OneWayLSTM
from mxtrain.model.prepare import prepare_network
from mxtrain.text.bilstm import BiLSTM

SHAPE = ((9,), (9,), ())


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def by_numpy(block: OneWayLSTM, x_TBI: np.ndarray) -> np.ndarray:
    """The equations of an LSTM, with gates in MXNet's order: input, forget, candidate, output."""
    i2h, h2h, i_bias, h_bias = (
        getattr(block, name).data().asnumpy() for name in ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
    )
    hidden = cell = np.zeros((x_TBI.shape[1], h2h.shape[1]))
    found = []
    for x_BI in x_TBI:
        enters, forgets, candidate, leaves = np.split(x_BI @ i2h.T + i_bias + hidden @ h2h.T + h_bias, 4, axis=1)
        cell = sigmoid(forgets) * cell + sigmoid(enters) * np.tanh(candidate)
        hidden = sigmoid(leaves) * np.tanh(cell)
        found.append(hidden)
    return np.stack(found)


def test_a_layer_equals_the_equations_in_both_directions() -> None:
    layer = BiLSTMLayer(3, 4)
    layer.initialize(mx.init.Normal(0.5))
    x_TBI = np.random.RandomState(0).randn(6, 2, 3).astype(np.float32)
    found = layer(nd.array(x_TBI), nd.array([6, 4])).asnumpy()
    np.testing.assert_allclose(found[..., :4], by_numpy(layer.forward_lstm, x_TBI), rtol=1e-4, atol=1e-5)
    for text, length in enumerate((6, 4)):
        turned = by_numpy(layer.backward_lstm, x_TBI[:length, text : text + 1][::-1])[::-1, 0]
        np.testing.assert_allclose(found[:length, text, 4:], turned, rtol=1e-4, atol=1e-5)


def build(**options: Any) -> Any:
    model = BiLSTM(units=8, embed_size=6, **options)
    return prepare_network(
        model,
        num_classes=3,
        input_shape=SHAPE,
        seed=0,
        network=model.build_tagger(3, SHAPE, 20),
        output_shapes=[(9, 3)],
    ).network


@pytest.mark.parametrize("hybrid", [False, True])
def test_padding_and_other_texts_do_not_affect_outputs(hybrid: bool) -> None:
    network = build(dropout=0.0)
    if hybrid:
        network.hybridize(static_alloc=True, static_shape=True)
    tokens = nd.array(np.random.RandomState(1).randint(0, 20, (2, 9)), dtype="int32")
    kinds = nd.zeros((2, 9), dtype="int32")
    whole = network(tokens, kinds, nd.array([9, 5])).asnumpy()
    other = tokens.copy()
    other[1, 5:] = 3
    np.testing.assert_array_equal(network(other, kinds, nd.array([9, 5])).asnumpy()[1, :5], whole[1, :5])
    alone = network(tokens[1:, :5], kinds[1:, :5], nd.array([5])).asnumpy()
    np.testing.assert_allclose(alone[0], whole[1, :5], rtol=1e-5, atol=1e-6)


def test_dropout_acts_between_layers() -> None:
    network = build(dropout=0.5, num_layers=2)
    assert count_dropouts(network, 3, 0.5) == 3, "before each layer and before the scores"
    arguments = nd.ones((1, 9), dtype="int32"), nd.zeros((1, 9), dtype="int32"), nd.array([9])
    seen = []
    network.layers[1].register_forward_hook(lambda block, inputs, output: seen.append(inputs[0].asnumpy()))
    with autograd.record():
        network(*arguments)
    network(*arguments)
    assert 0.3 < (seen[0] == 0).mean() < 0.7 and not (seen[1] == 0).any()


def test_gradients_match_finite_differences() -> None:
    layer = BiLSTMLayer(2, 3)
    layer.initialize(mx.init.Normal(0.5))
    layer.cast("float64")
    x = nd.array(np.random.RandomState(2).randn(4, 2, 2), dtype="float64")
    length, head = nd.array([4, 2], dtype="float64"), nd.array(np.random.RandomState(3).randn(4, 2, 6), dtype="float64")
    head[2:, 1] = 0  # behind the text's end nothing counts
    x.attach_grad()
    with autograd.record():
        loss = (layer(x, length) * head).sum()
    loss.backward()
    for place in ((0, 0, 0), (3, 0, 1), (1, 1, 0)):
        sides = []
        for step in (1e-5, -1e-5):
            moved = x.copy()
            moved[place] += step
            sides.append(float((layer(moved, length) * head).sum().asscalar()))
        assert float(x.grad[place].asscalar()) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5)
    assert not x.grad[2:, 1].asnumpy().any()


def test_score_of_a_text_is_that_of_the_maximum_over_its_tokens() -> None:
    model = BiLSTM(units=4, embed_size=3, num_layers=1)
    network = prepare_network(
        model, num_classes=2, input_shape=SHAPE, seed=0, network=model.build_text(2, SHAPE, 20)
    ).network
    network.hybridize(static_alloc=True, static_shape=True)
    token_BT = np.random.RandomState(2).randint(0, 20, (2, 9))
    kind_BT = np.ones((2, 9), int)
    found = network(nd.array(token_BT), nd.array(kind_BT), nd.array([9, 5])).asnumpy()
    word, kind, weight, bias = (
        one.data().asnumpy()
        for one in (
            network.word_embed.weight,
            network.token_type_embed.weight,
            network.output.weight,
            network.output.bias,
        )
    )
    for row, length in enumerate((9, 5)):
        x_T1E = (word[token_BT[row]] + kind[kind_BT[row]])[:length, None]
        forward = by_numpy(network.layers[0].forward_lstm, x_T1E)
        backward = by_numpy(network.layers[0].backward_lstm, x_T1E[::-1])[::-1]
        state_U = np.concatenate([forward, backward], axis=2).max(axis=0)[0]
        np.testing.assert_allclose(found[row], weight @ state_U + bias, rtol=1e-4, atol=1e-5)
