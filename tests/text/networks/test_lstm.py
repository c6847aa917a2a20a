"""The recurrent language model against NumPy and plain Gluon: values, gradients, dropouts, and one token at a time."""

from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.prepare import prepare_network
from mxtrain.text.language_modeling.lstm import Lstm
from mxtrain.text.networks import lstm
from mxtrain.text.networks.language import TokenScores, chunk_scores, num_chunks

V, T, B = 11, 6, 4
PARAMETERS = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")


def build(dtype: str = "float32", chunks: int = 1, **settings: Any) -> Any:
    network = Lstm(**{"units": 5, "hidden_size": 7, "num_layers": 2, **settings, "output_chunks": chunks}).build_text(
        V, ((T,), (T,)), V
    )
    mx.random.seed(1)
    network.initialize(mx.init.Uniform(0.5))
    network.cast(dtype)
    return network


def build_batch(network: Any, dtype: str = "float32") -> Tuple[Any, ...]:
    rng = np.random.RandomState(0)
    token, label = nd.array(rng.randint(0, V, (B, T)), dtype="int32"), nd.array(rng.randint(-1, V, (B, T)), dtype=dtype)
    states = [nd.array(rng.randn(B, width) * 0.3, dtype=dtype) for _, width in network._sizes.widths for _ in "hc"]
    return (token, label, *states)


def by_numpy(network: Any, token_BT: np.ndarray, label_BT: np.ndarray, *states: np.ndarray) -> Sequence[np.ndarray]:
    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    table_VE = network.embedding.weight.data().asnumpy()
    x_TB, after = table_VE[token_BT.T], []
    for number, layer in enumerate(network.layers):
        own = {name: getattr(layer, name).data().asnumpy() for name in PARAMETERS}
        state, cell = states[2 * number : 2 * number + 2]
        out = []
        for x in x_TB:
            gates = x @ own["i2h_weight"].T + own["i2h_bias"] + state @ own["h2h_weight"].T + own["h2h_bias"]
            enter, forget, new, leave = np.split(gates, 4, axis=1)
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
            state = sigmoid(leave) * np.tanh(cell)
            out.append(state)
        x_TB = np.stack(out)
        after += [state, cell]
    table = table_VE if network._sizes.tied else network.table.data().asnumpy()
    score = x_TB @ table.T + network.output.bias.data().asnumpy()
    log_p = score - np.log(np.exp(score).sum(axis=-1, keepdims=True))
    loss_TB = -np.take_along_axis(log_p, np.maximum(label_BT.T, 0).astype(int)[..., None], axis=2)[..., 0]
    return [loss_TB.T * (label_BT >= 0), *after]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunks", [1, 4])
def test_loss_and_states_match_numpy(tied: bool, chunks: int) -> None:
    network = build("float64", chunks, tied=tied)
    inputs = build_batch(network, "float64")
    wanted = by_numpy(network, *(one.asnumpy() for one in inputs))
    network.hybridize(static_alloc=True)
    for found, expected in zip(network(*inputs), wanted):
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-10, atol=1e-12)


def gradients(network: Any, inputs: Sequence[Any]) -> Dict[str, np.ndarray]:
    with autograd.record():
        loss, *_ = network(*inputs)
    loss.backward()
    return {name: p.grad().asnumpy() for name, p in distinct_parameters(network).items()}


def test_the_gradient_of_a_tied_table_is_that_of_both_its_uses() -> None:
    network = build("float64")
    inputs = build_batch(network, "float64")
    found = gradients(network, inputs)["embedding.weight"]
    weight = network.embedding.weight
    value = weight.data().asnumpy()
    for place in [(0, 0), (3, 2), (10, 4)]:
        losses = []
        for step in (1e-5, -1e-5):
            moved = value.copy()
            moved[place] += step
            weight.set_data(nd.array(moved, dtype="float64"))
            losses.append(float(network(*inputs)[0].sum().asscalar()))
        assert found[place] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-5, abs=1e-8)


def test_chunks_keep_loss_and_gradients() -> None:
    whole, parts = (build("float64", chunks) for chunks in (1, 4))
    inputs = build_batch(whole, "float64")
    found, wanted = gradients(parts, inputs), gradients(whole, inputs)
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12)


def test_lstm_without_dropout_equals_gluon() -> None:
    network = build(num_layers=1, tied=False)
    inputs = build_batch(network)
    other = gluon.rnn.LSTM(7, input_size=5)
    other.initialize()
    for name in PARAMETERS:
        getattr(other, f"l0_{name}").set_data(getattr(network.layers[0], name).data())
    x_TBE, _ = network.embedding(inputs[0].T)
    wanted, states = other(x_TBE, [one.expand_dims(0) for one in inputs[2:]])
    found, *after = network.layers[0](x_TBE, *inputs[2:])
    np.testing.assert_array_equal(found.asnumpy(), wanted.asnumpy())
    for own, theirs in zip(after, states):
        np.testing.assert_array_equal(own.asnumpy(), theirs[0].asnumpy())


DROPOUTS = ("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout", "weight_dropout")


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_dropout_is_applied_in_training_and_only_there(name: str) -> None:
    plain, dropping = build(), build(**{name: 0.5})
    inputs = build_batch(plain)
    for network in (plain, dropping):
        network.hybridize(static_alloc=True)
    assert np.array_equal(plain(*inputs)[0].asnumpy(), dropping(*inputs)[0].asnumpy())
    found = []
    for _ in range(2):
        with autograd.record():
            found.append(dropping(*inputs)[0].asnumpy())
    with autograd.record():
        assert np.array_equal(plain(*inputs)[0].asnumpy(), plain(*inputs)[0].asnumpy())
    assert not np.allclose(found[0], found[1]), "another mask each time"


def test_dropout_masks_are_locked_and_drop_complete_words() -> None:
    x = nd.ones((5, 3, 40))
    with autograd.record():
        dropped = lstm.LockedDropout(0.5)(x).asnumpy()
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert (dropped == dropped[:1]).all() and (dropped[0, 0] != dropped[0, 1]).any()
    embedding = lstm.WordEmbedding(V, 6, 0.5)
    embedding.initialize()
    embedding.weight.set_data(nd.ones((V, 6)))
    token = nd.array(np.arange(200).reshape(20, 10) % V, dtype="int32")
    with autograd.record():
        found = embedding(token)[0].asnumpy()
    for word in range(V):
        values = found[token.asnumpy() == word]
        assert len(np.unique(values)) == 1 and values[0, 0] in (0.0, 2.0)
    assert len(np.unique(found)) == 2


def test_a_dropped_weight_has_no_gradient() -> None:
    network = build(weight_dropout=0.5, num_layers=1)
    found = gradients(network, build_batch(network))
    share = (found["layers.0.h2h_weight"] == 0).mean()
    assert 0.3 < share < 0.7 and (found["layers.0.i2h_weight"] != 0).all()


@pytest.mark.parametrize("tied", [True, False])
def test_one_token_after_the_other_gives_the_same(tied: bool) -> None:
    network = build(tied=tied)
    token, label, *states = build_batch(network)
    wanted = network(token, label, *states)[0].asnumpy()
    memory = list(states)
    for place in range(T):
        score_BV, memory = network.step(token[:, place], place, memory)
        log_p = nd.log_softmax(score_BV).asnumpy()
        label_B = label.asnumpy()[:, place].astype(int)
        found = -log_p[np.arange(B), np.maximum(label_B, 0)] * (label_B >= 0)
        np.testing.assert_allclose(found, wanted[:, place], rtol=1e-5, atol=1e-6)
    assert [one.shape for one in network.initial_state(3, mx.cpu())] == [(3, one.shape[1]) for one in states]


def test_chunks_are_for_large_vocabularies() -> None:
    sizes = [chunk_scores() // 64, 3 * chunk_scores() // 64, chunk_scores()]
    assert [num_chunks("auto", 64, size) for size in sizes] == [1, 3, 8]
    assert num_chunks(100, 64, 10) == 64
    bounds = TokenScores(5, 10, 3)._bounds
    assert bounds == [0, 3, 6, 10]


def test_description_builds_the_network_with_its_states() -> None:
    model = Lstm(units=6, hidden_size=8, num_layers=3)
    assert model.state_shapes == [(8,), (8,), (8,), (8,), (6,), (6,)]
    shape = ((T,), (T,), *model.state_shapes)
    made = prepare_network(
        model,
        num_classes=V,
        input_shape=shape,
        seed=0,
        network=model.build_text(V, shape, V),
        output_shapes=[(T,), *model.state_shapes],
    )
    names = set(distinct_parameters(made.network))
    assert {"embedding.weight", "layers.2.h2h_weight", "output.bias"} <= names and "table" not in names
