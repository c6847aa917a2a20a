"""A block of the Conformer against the same in NumPy, written from the paper."""

from __future__ import annotations

from typing import Dict

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.model.parameters import distinct_parameters
from mxtrain.speech.networks.conformer import ConformerBlock, ConformerSizes

SIZES = ConformerSizes(units=8, hidden_size=12, num_heads=2, kernel=3, dropout=0.0)
Weights = Dict[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def dense(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def norm(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.gamma"] + weights[f"{name}.beta"]


def feed_forward(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    hidden = dense(norm(x, weights, f"{name}.norm"), weights, f"{name}.expand")
    return x + dense(hidden * sigmoid(hidden), weights, f"{name}.reduce") / 2


def attention(x: np.ndarray, weights: Weights) -> np.ndarray:
    parts = np.split(dense(norm(x, weights, "attention.norm"), weights, "attention.qkv"), 3, axis=1)
    turn = np.exp(1j * np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(2) / 2))
    contexts = []
    for head in (slice(0, 4), slice(4, 8)):
        # Half a head's units are real parts, half are imaginary ones.
        query, key = ((part[:, head][:, :2] + 1j * part[:, head][:, 2:]) * turn for part in parts[:2])
        score = np.exp((query @ key.conj().T).real / 2)
        contexts.append(score / score.sum(axis=1, keepdims=True) @ parts[2][:, head])
    return x + dense(np.concatenate(contexts, axis=1), weights, "attention.projection")


def convolution(x: np.ndarray, weights: Weights) -> np.ndarray:
    value, gate = np.split(dense(norm(x, weights, "convolution.norm"), weights, "convolution.gated"), 2, axis=1)
    gated = np.pad(value * sigmoid(gate), ((1, 1), (0, 0)))
    kernel_UK = weights["convolution.depthwise.weight"][:, 0, :, 0]
    found = sum(gated[step : step + len(x)] * kernel_UK[:, step] for step in range(3))
    found = norm(found + weights["convolution.depthwise.bias"], weights, "convolution.inner_norm")
    return x + dense(found * sigmoid(found), weights, "convolution.projection")


def test_conformer_block_equals_the_paper() -> None:
    mx.random.seed(0)
    block = ConformerBlock(SIZES)
    block.initialize(mx.init.Normal(0.4))
    for name, parameter in distinct_parameters(block).items():
        if name.endswith(("bias", "beta", "gamma")):
            parameter.set_data(nd.random.normal(shape=parameter.shape) + name.endswith("gamma"))
    x_TU = np.random.RandomState(0).randn(7, 8)
    found = block(nd.array(x_TU[:, None]), nd.ones((7, 1, 1)), nd.array([7])).asnumpy()[:, 0]
    parameters = distinct_parameters(block)
    weights = {name: one.data().asnumpy().astype(np.float64) for name, one in parameters.items()}
    wanted = convolution(attention(feed_forward(x_TU, weights, "first"), weights), weights)
    wanted = norm(feed_forward(wanted, weights, "second"), weights, "norm")
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
