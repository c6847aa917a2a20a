"""Networks of features against their papers' formulas in NumPy, pair by pair.

Legend: B batch, F fields, N numbers, C features, U units.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.model.custom import CustomFields, CustomModel
from mxtrain.model.features import FeatureModel, build_features
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.prepare import prepare_network
from mxtrain.tables.feature_models import DeepFM, FactorizationMachine, WideDeep

SIZES, NUMBERS, BATCH = (3, 4, 5), 2, 6
INPUTS = [(SIZES, NUMBERS), (SIZES, 0), ((), NUMBERS)]
Inputs = Tuple[np.ndarray, np.ndarray]


def prepared(
    model: FeatureModel, sizes: Tuple[int, ...], numbers: int, outputs: int = 1
) -> Tuple[Any, Dict[str, np.ndarray]]:
    """The network with weights large enough to matter, and these by structural name."""
    shapes = tuple((size,) for size in (len(sizes), numbers) if size)
    network = prepare_network(
        model, num_classes=outputs, input_shape=shapes, seed=3, network=model.build_features(outputs, sizes, numbers)
    ).network
    draw = np.random.RandomState(0)
    found = {}
    for name, parameter in distinct_parameters(network).items():
        found[name] = draw.randn(*parameter.shape).astype(np.float32)
        parameter.set_data(nd.array(found[name]))
    return network, found


def drawn(sizes: Tuple[int, ...], numbers: int) -> Inputs:
    draw = np.random.RandomState(1)
    begins = np.cumsum((0, *sizes))[: len(sizes)]
    id_BF = np.stack([draw.randint(0, size, BATCH) + begin for size, begin in zip(sizes, begins)], 1) if sizes else None
    return id_BF, draw.randn(BATCH, numbers)


def scores(network: Any, inputs: Inputs, sizes: Tuple[int, ...], numbers: int) -> np.ndarray:
    arrays = ([nd.array(inputs[0], dtype="int32")] if sizes else []) + ([nd.array(inputs[1])] if numbers else [])
    return network(*arrays).asnumpy()


def linear(weights: Dict[str, np.ndarray], inputs: Inputs, row: int, sizes: Tuple[int, ...]) -> np.ndarray:
    found = weights["linear.bias"].astype(float)
    for number in inputs[0][row] if sizes else ():
        found = found + weights["linear.table.weight"][number]
    for place, value in enumerate(inputs[1][row]):
        found = found + weights["linear.number.weight"][:, place] * value
    return found


def vectors(weights: Dict[str, np.ndarray], inputs: Inputs, row: int, sizes: Tuple[int, ...]) -> List[np.ndarray]:
    ids = [weights["vectors.table.weight"][number] for number in inputs[0][row]] if sizes else []
    return [*ids, *(weights["vectors.number"][place] * value for place, value in enumerate(inputs[1][row]))]


def pairs(vector_CU: List[np.ndarray]) -> float:
    count = len(vector_CU)
    return sum(float(vector_CU[i] @ vector_CU[j]) for i in range(count) for j in range(i + 1, count))


def dense(weights: Dict[str, np.ndarray], x: np.ndarray, layers: int) -> np.ndarray:
    for number in range(layers):  # 0 flattens, then a dense layer and its activation in turn
        x = np.maximum(weights[f"deep.{2 * number + 1}.weight"] @ x + weights[f"deep.{2 * number + 1}.bias"], 0)
    return weights["output.weight"] @ x


@pytest.mark.parametrize("sizes, numbers", INPUTS)
def test_a_factorization_machine_equals_its_formula(sizes: Tuple[int, ...], numbers: int) -> None:
    network, weights = prepared(FactorizationMachine(units=3), sizes, numbers)
    inputs = drawn(sizes, numbers)
    wanted = [linear(weights, inputs, row, sizes) + pairs(vectors(weights, inputs, row, sizes)) for row in range(BATCH)]
    np.testing.assert_allclose(scores(network, inputs, sizes, numbers), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes, numbers", INPUTS)
def test_deepfm_equals_its_formula(sizes: Tuple[int, ...], numbers: int) -> None:
    network, weights = prepared(DeepFM(units=3, hidden=[5, 4]), sizes, numbers)
    inputs = drawn(sizes, numbers)
    wanted = []
    for row in range(BATCH):
        own = vectors(weights, inputs, row, sizes)
        wanted.append(linear(weights, inputs, row, sizes) + pairs(own) + dense(weights, np.concatenate(own), 2))
    np.testing.assert_allclose(scores(network, inputs, sizes, numbers), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes, numbers", INPUTS)
@pytest.mark.parametrize("outputs", [1, 3])
def test_wide_and_deep_equals_its_formula(sizes: Tuple[int, ...], numbers: int, outputs: int) -> None:
    network, weights = prepared(WideDeep(units=3, hidden=[5, 4]), sizes, numbers, outputs)
    inputs = drawn(sizes, numbers)
    wanted = []
    for row in range(BATCH):
        own = vectors(weights, (inputs[0], inputs[1][:, :0]), row, sizes)
        deep = np.concatenate([*own, inputs[1][row]])
        wanted.append(linear(weights, inputs, row, sizes) + dense(weights, deep, 2))
    np.testing.assert_allclose(scores(network, inputs, sizes, numbers), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [FactorizationMachine(units=4), DeepFM(units=4, hidden=[5])])
def test_interactions_of_pairs_give_a_score_per_class(model: FeatureModel) -> None:
    """The scores of three classes, each from its own part of the weights."""
    network, _ = prepared(model, SIZES, NUMBERS, 3)
    found = scores(network, drawn(SIZES, NUMBERS), SIZES, NUMBERS)
    assert found.shape == (BATCH, 3) and len({round(float(score), 6) for score in found[0]}) == 3


def test_user_network_receives_field_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: Dict[str, Any] = {}

    def network(classes: int, field_sizes: List[int], num_numbers: int) -> Any:
        from mxtrain.engine.backend import gluon

        told.update(classes=classes, field_sizes=field_sizes, num_numbers=num_numbers)
        return gluon.nn.Dense(classes)

    build_features(CustomModel.of_target(network, {}, CustomFields(), "model"), 1, SIZES, NUMBERS)  # type: ignore[arg-type]
    assert told == {"classes": 1, "field_sizes": [3, 4, 5], "num_numbers": 2}
