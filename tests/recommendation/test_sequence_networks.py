"""Networks of sequences against their formulas in NumPy, item by item, and their losses."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
from pydantic import ValidationError

from mxtrain.engine.backend import autograd, nd
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.prepare import prepare_network
from mxtrain.recommendation.losses import BPR, FullSoftmax, SampledBCE, SampledSoftmax
from mxtrain.recommendation.sequence_models import GRU4Rec, SASRec, SequenceModel

ITEMS, WIDTH = 7, 5
HISTORIES = [[3, 1, 3, 6, 0], [2, 5], [4]]
Values = Dict[str, np.ndarray]


def prepared(model: SequenceModel) -> Tuple[Any, Values]:
    """The network with weights large enough to matter, and these by structural name."""
    network = prepare_network(
        model,
        num_classes=ITEMS,
        input_shape=((WIDTH,), ()),
        seed=1,
        network=model.build_sequence(ITEMS, WIDTH),
        output_shapes=[(ITEMS,)],
    ).network
    draw, found = np.random.RandomState(0), {}
    for name, parameter in distinct_parameters(network).items():
        found[name] = draw.uniform(-1, 1, parameter.shape).astype(np.float32)
        parameter.set_data(nd.array(found[name]))
    return network, found


def scores(network: Any, histories: List[List[int]], padding: int = 0) -> np.ndarray:
    item_BH = np.full((len(histories), WIDTH), padding)
    for row, history in enumerate(histories):
        item_BH[row, : len(history)] = history
    found: np.ndarray = network(nd.array(item_BH, dtype="int32"), nd.array(list(map(len, histories)))).asnumpy()
    return found


def normed(x_HU: np.ndarray, values: Values, name: str) -> np.ndarray:
    centred = x_HU - x_HU.mean(axis=1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
    result: np.ndarray = centred / scale * values[f"{name}.gamma"] + values[f"{name}.beta"]
    return result


def dense(x_HU: np.ndarray, values: Values, name: str) -> np.ndarray:
    result: np.ndarray = x_HU @ values[f"{name}.weight"].T + values[f"{name}.bias"]
    return result


def sasrec(values: Values, history: List[int], heads: int = 2) -> np.ndarray:
    """Scores of all items after a history. Source: Kang and McAuley (2018), section III, with BERT's layer norms."""
    values = {name: value.astype(np.float64) for name, value in values.items()}
    table, size = values["items.weight"], len(history)
    x_HU = normed(table[history] + values["positions.weight"][:size], values, "norm")
    for layer in ("layers.0", "layers.1"):
        query, key, value = np.split(dense(x_HU, values, f"{layer}.qkv"), 3, axis=1)
        width, context = x_HU.shape[1] // heads, np.zeros_like(x_HU)
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            for place in range(size):
                logits = key[: place + 1, part] @ query[place, part] / math.sqrt(width)
                weight = np.exp(logits - logits.max())
                context[place, part] = weight / weight.sum() @ value[: place + 1, part]
        x_HU = normed(x_HU + dense(context, values, f"{layer}.projection"), values, f"{layer}.norm")
        hidden = dense(x_HU, values, f"{layer}.ffn.ffn_1")
        hidden = np.array([[0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in row] for row in hidden])
        x_HU = normed(x_HU + dense(hidden, values, f"{layer}.ffn.ffn_2"), values, f"{layer}.ffn.layer_norm")
    result: np.ndarray = table @ x_HU[-1]
    return result


def gru4rec(values: Values, history: List[int]) -> np.ndarray:
    """Scores of all items after a history. Source: Cho et al. (2014) in the form of cuDNN, which PyTorch has too."""
    sequence = values["items.weight"][history]
    for layer in ("layers.0", "layers.1"):
        i2h, h2h, i2h_bias, h2h_bias = (values[f"{layer}.{name}"] for name in PARTS)
        state, states = np.zeros(h2h.shape[1]), []
        for x in sequence:
            (xr, xz, xn), (hr, hz, hn) = np.split(i2h @ x + i2h_bias, 3), np.split(h2h @ state + h2h_bias, 3)
            reset, update = 1 / (1 + np.exp(-(xr + hr))), 1 / (1 + np.exp(-(xz + hz)))
            state = (1 - update) * np.tanh(xn + reset * hn) + update * state
            states.append(state)
        sequence = np.array(states)
    result: np.ndarray = values["items.weight"] @ (values["dense.weight"] @ sequence[-1] + values["dense.bias"])
    return result


PARTS = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
MODELS: Dict[str, Tuple[SequenceModel, Any]] = {
    "sasrec": (SASRec(units=6, hidden_size=8), sasrec),
    "gru4rec": (GRU4Rec(units=4, hidden_size=6, num_layers=2), gru4rec),
}


@pytest.mark.parametrize("name", MODELS)
def test_scores_match_the_formulas_and_ignore_padding(name: str) -> None:
    model, formula = MODELS[name]
    network, values = prepared(model)
    found = scores(network, HISTORIES)
    for history, score_I in zip(HISTORIES, found):
        np.testing.assert_allclose(score_I, formula(values, history), rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(scores(network, HISTORIES, padding=4), found)


def test_number_of_heads_divides_the_units() -> None:
    with pytest.raises(ValidationError, match="units=6 must be a multiple of num_heads=4"):
        SASRec(units=6, num_heads=4)


SCORES = np.random.RandomState(1).randn(3, ITEMS)
CANDIDATES = np.array([[2, 0, 5], [6, 1, -1], [0, 4, 4]])


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


def bpr(own: float, others: List[float]) -> Tuple[float, int]:
    return sum(softplus(other - own) for other in others), len(others)


def bce(own: float, others: List[float]) -> Tuple[float, int]:
    return softplus(-own) + sum(map(softplus, others)), 1 + len(others)


def softmax(own: float, others: List[float]) -> Tuple[float, int]:
    return math.log(sum(math.exp(score) for score in (own, *others))) - own, 1


@pytest.mark.parametrize("loss, formula", [(BPR(), bpr), (SampledBCE(), bce), (SampledSoftmax(), softmax)])
def test_losses_of_candidates_read_their_scores(loss: Any, formula: Any) -> None:
    from mxtrain.recommendation.candidate_scores import CandidateLoss

    block = CandidateLoss(loss.build(ITEMS, True))
    assert block.weighted == loss.weighted
    score_BI, item_BC = nd.array(SCORES, dtype="float64"), nd.array(CANDIDATES, dtype="int32")
    score_BI.attach_grad()
    with autograd.record():
        outputs = block(score_BI, item_BC)
        loss_B = outputs[0] if loss.weighted else outputs
    loss_B.backward()
    for row in range(3):
        own, *others = (float(SCORES[row, item]) for item in CANDIDATES[row] if item >= 0)
        value, weight = formula(own, others)
        assert loss_B.asnumpy()[row] == pytest.approx(value)
        if loss.weighted:
            assert outputs[1].asnumpy()[row] == weight
    gradient = score_BI.grad.asnumpy()
    step = 1e-6
    for row, item in ((0, 2), (0, 5), (2, 4), (1, 0), (2, 6)):
        moved = SCORES.copy()
        moved[row, item] += step
        values = [
            formula(*(lambda one: (one[0], one[1:]))([float(array[row, k]) for k in CANDIDATES[row] if k >= 0]))[0]
            for array in (SCORES, moved)
        ]
        assert gradient[row, item] == pytest.approx((values[1] - values[0]) / step, abs=1e-4)


def test_full_softmax_compares_with_all_items() -> None:
    block = FullSoftmax().build(ITEMS, True)
    found = block(nd.array(SCORES, dtype="float64"), nd.array(CANDIDATES[:, :1], dtype="int32")).asnumpy()
    expected = [softmax(row[item], np.delete(row, item).tolist())[0] for row, item in zip(SCORES, CANDIDATES[:, 0])]
    assert found.shape == (3,) and found == pytest.approx(expected)
