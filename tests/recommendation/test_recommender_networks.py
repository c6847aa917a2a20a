"""Networks for recommendation against their papers' formulas in NumPy, user by user and item by item."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.model.graph.id_inputs import tables_of
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.prepare import TableOptions, prepare_network
from mxtrain.model.spec import Model
from mxtrain.recommendation.fields import RecommenderFields
from mxtrain.recommendation.model import Recommender, build_feature_recommender
from mxtrain.recommendation.recommenders import ItemFactors, MatrixFactorization, NeuMF
from mxtrain.tables.feature_models import DeepFM, FactorizationMachine, WideDeep

USERS, ITEMS, BATCH, CANDIDATES, HISTORY = 5, 7, 4, 3, 3
DRAW = np.random.RandomState(0)
USER, ITEM = DRAW.randint(0, USERS, BATCH), DRAW.randint(0, ITEMS, (BATCH, CANDIDATES))
PAST = np.array([[0, 3, 6], [2, -1, -1], [-1, -1, -1], [5, 1, -1]])
Values = Dict[str, np.ndarray]


def prepared(model: Model) -> Tuple[Any, Values]:
    """The network with weights large enough to matter, and these by structural name."""
    fields = RecommenderFields((USERS,), (ITEMS,))
    if isinstance(model, Recommender):
        shapes: Any = ((), (CANDIDATES,), *(((HISTORY,), ()) if model.reads_history else ()))
        built = model.build_recommender(USERS, ITEMS, 3.5)
    else:
        shapes, built = fields.shapes(CANDIDATES), build_feature_recommender(model, fields)
    network = prepare_network(
        model, num_classes=1, input_shape=shapes, seed=1, network=built, output_shapes=[(CANDIDATES,)]
    ).network
    found = {}
    for name, parameter in distinct_parameters(network).items():
        if name in ("bias", "output.bias") and not isinstance(model, (DeepFM, FactorizationMachine, WideDeep)):
            assert parameter.data().asnumpy().tolist() == [3.5], "scores begin at the mean of the ratings"
        found[name] = DRAW.randn(*parameter.shape).astype(np.float32)
        parameter.set_data(nd.array(found[name]))
    return network, found


def inputs(model: Model) -> Tuple[Any, ...]:
    if not isinstance(model, Recommender):
        return (nd.array(np.concatenate([USER[:, None], USERS + ITEM], axis=1), dtype="int32"),)
    arrays = (USER, ITEM, np.maximum(PAST, 0)) if model.reads_history else (USER, ITEM)
    lengths = (nd.array((PAST >= 0).sum(axis=1)),) if model.reads_history else ()
    return (*(nd.array(array, dtype="int32") for array in arrays), *lengths)


def matrix_factorization(values: Values, user: int, item: int, past: np.ndarray) -> float:
    product = values["users.weight"][user] @ values["items.weight"][item]
    bias = values["user_bias.weight"][user, 0] + values["item_bias.weight"][item, 0]
    return float(values["bias"][0] + bias + product)


def item_factors(alpha: float) -> Any:
    def score(values: Values, user: int, item: int, past: np.ndarray) -> float:
        has = [one for one in past.tolist() if one >= 0]
        vector = values["users.weight"][user] if "users.weight" in values else np.zeros(4)
        if has:
            vector = vector + len(has) ** -alpha * sum(values["history.weight"][one] for one in has)
        product = vector @ values["items.weight"][item]
        bias = values["user_bias.weight"][user, 0] + values["item_bias.weight"][item, 0]
        return float(values["bias"][0] + bias + product)

    return score


def neumf(values: Values, user: int, item: int, past: np.ndarray) -> float:
    gmf = values["gmf_users.weight"][user] * values["gmf_items.weight"][item]
    joined = np.concatenate([values["mlp_users.weight"][user], values["mlp_items.weight"][item]])
    first = np.concatenate([values["user_part.weight"], values["item_part.weight"]], axis=1)
    hidden = np.maximum(first @ joined + values["item_part.bias"], 0)
    hidden = np.maximum(values["mlp.1.weight"] @ hidden + values["mlp.1.bias"], 0)
    return float(values["output.weight"][0] @ np.concatenate([gmf, hidden]) + values["output.bias"][0])


def factorization_machine(values: Values, user: int, item: int, past: np.ndarray) -> float:
    rows = [user, USERS + item]
    linear = sum(values["network.linear.table.weight"][row, 0] for row in rows) + values["network.linear.bias"][0]
    first, second = (values["network.vectors.table.weight"][row] for row in rows)
    return float(linear + first @ second)


MODELS = {
    "matrix_factorization": (MatrixFactorization(units=4), matrix_factorization),
    "fism": (ItemFactors(units=4, alpha=0.3), item_factors(0.3)),
    "svd_pp": (ItemFactors(units=4, user_vectors=True), item_factors(0.5)),
    "neumf": (NeuMF(units=4, hidden=[6, 5, 4]), neumf),
    "factorization_machine": (FactorizationMachine(units=4), factorization_machine),
}


@pytest.mark.parametrize("name", MODELS)
def test_scores_equal_published_formulas(name: str) -> None:
    model, formula = MODELS[name]
    network, values = prepared(model)
    expected = [[formula(values, USER[b], ITEM[b, c], PAST[b]) for c in range(CANDIDATES)] for b in range(BATCH)]
    assert network(*inputs(model)).asnumpy() == pytest.approx(np.array(expected), abs=1e-4)
    network.hybridize()
    assert network(*inputs(model)).asnumpy() == pytest.approx(np.array(expected), abs=1e-4)


@pytest.mark.parametrize("name", [name for name, (model, _) in MODELS.items() if isinstance(model, Recommender)])
def test_the_faster_way_to_all_items_gives_the_same_scores(name: str) -> None:
    model, _ = MODELS[name]
    assert isinstance(model, Recommender)
    network, values = prepared(model)
    user_B, *others = inputs(model)
    history = others[1:]
    every_BI = nd.array(np.tile(np.arange(ITEMS), (BATCH, 1)), dtype="int32")
    found = model.score_all({key: nd.array(value) for key, value in values.items()}, (user_B, *history))
    if name == "neumf":
        assert found is None
    else:
        assert found is not None
        assert found.asnumpy() == pytest.approx(network(user_B, every_BI, *history).asnumpy(), abs=1e-4)


@pytest.mark.parametrize("model", [DeepFM(units=2), WideDeep(units=2)])
def test_networks_for_features_score_the_rows_of_user_and_item(model: Model) -> None:
    network, values = prepared(model)
    rows = np.stack([np.repeat(USER, CANDIDATES), USERS + ITEM.ravel()], axis=1)
    expected = network.network(nd.array(rows, dtype="int32")).asnumpy().reshape(BATCH, CANDIDATES)
    assert network(*inputs(model)).asnumpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("model", [FactorizationMachine(units=3), DeepFM(units=2), WideDeep(units=2)])
def test_further_features_are_in_each_row_with_user_and_item(model: Model) -> None:
    """A user has one further category and a number, an item two and one; candidate by candidate; nothing but a look-up
    is done with ids, so the tables can be sparse."""
    fields = RecommenderFields((USERS, 3), (ITEMS, 4, 2), 1, 1)
    shapes = fields.shapes(CANDIDATES)
    assert shapes == ((2 + 3 * CANDIDATES,), (2 * CANDIDATES,))
    prepared = prepare_network(
        model,
        num_classes=1,
        input_shape=shapes,
        seed=1,
        network=build_feature_recommender(model, fields),
        output_shapes=[(CANDIDATES,)],
        tables=TableOptions(sparse_from=1),
    )
    network = prepared.network
    assert prepared.dense_tables == [] and all(table.ids_from == 0 for table in tables_of(network))
    for parameter in network.collect_params().values():
        parameter.set_data(nd.array(DRAW.randn(*parameter.shape)))
    user_BV = np.stack([USER, USERS + DRAW.randint(0, 3, BATCH)], axis=1)
    begin = USERS + 3 + np.array([0, ITEMS, ITEMS + 4])
    item_BCW = begin + DRAW.randint(0, [ITEMS, 4, 2], (BATCH, CANDIDATES, 3))
    number_BCN = DRAW.randn(BATCH, CANDIDATES, 2).astype(np.float32)
    id_BK = np.concatenate([user_BV, item_BCW.reshape(BATCH, -1)], axis=1)
    found = network(nd.array(id_BK, dtype="int32"), nd.array(number_BCN.reshape(BATCH, -1))).asnumpy()
    for row in range(BATCH):
        for place in range(CANDIDATES):
            ids = np.concatenate([user_BV[row], item_BCW[row, place]])[None]
            score = network.network(nd.array(ids, dtype="int32"), nd.array(number_BCN[row, place][None]))
            assert found[row, place] == pytest.approx(score.asscalar(), rel=1e-5, abs=1e-4)
