"""Exceptions of the gradient tables with their reasons; errors of MXNet show in the tables."""

import inspect
import json

import pytest
import test_gradients
import test_gradients_of_sequences as sequences
from gluoncv_families import CLASSIFIERS
from gradients import operators, wrong

from mxtrain.engine.backend import gluon
from mxtrain.model.graph.trace import NotTraceable, blocks_by_path, symbol_of
from mxtrain.model.mlp import MLP
from mxtrain.vision.classification.lenet import LeNet
from mxtrain.vision.classification.resnet import ResNet
from mxtrain.vision.networks.gluoncv_names import CLASSIFICATION_NAMES

CASES = [*test_gradients.ALL, *sequences.RECURRENT, *sequences.LOSSES]
LEFT_OUT = {
    "Block HybridBlock SymbolBlock Sequential HybridSequential Lambda HybridLambda Concurrent Loss": "compute nothing",
    "RecurrentCell HybridRecurrentCell ModifierCell SequentialRNNCell": "compute nothing",
    "Conv3DTranspose": "MXNet computes it on no CPU",
    "SparseEmbedding": "has sparse gradients",
    "SDMLLoss": "reads shapes, so it is tried as a function",
}
NO_GRADIENT = {"null", "ones_like", "_zeros", "_ones", "_arange", "_random_uniform", "_lesser_scalar", "shape_array"}
"""Operators that give the same whatever they are given, or numbers of their own."""


def test_every_layer_of_gluon_is_in_a_table_or_left_out_for_a_reason():
    tried = {type(block).__name__ for case in CASES for block in blocks_of(case.make())}
    left_out = {name for names in LEFT_OUT for name in names.split()}
    modules = (gluon.nn, gluon.rnn, gluon.loss, gluon.contrib.nn, gluon.contrib.rnn)
    known = {
        kind.__name__
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, gluon.Block)
    }
    assert known - tried - left_out == set()


def blocks_of(made):
    return [block for _, block in blocks_by_path(made)] if isinstance(made, gluon.Block) else []


@pytest.fixture(scope="module")
def covered():
    return {op for case in CASES for _, op, _ in operators(case)} | NO_GRADIENT


def operators_of(network, num_inputs=1):
    symbol, _ = symbol_of(network, training=True, num_inputs=num_inputs)
    return {node["op"] for node in json.loads(symbol.tojson())["nodes"]}


@pytest.mark.parametrize(
    "model",
    [MLP(dropout=0.1), LeNet(batch_norm=True), ResNet(), ResNet(version=2)],
    ids=["mlp", "lenet", "resnet", "resnet 2"],
)
def test_operators_of_our_networks_are_in_a_table(model, covered):
    assert operators_of(model.build(3, (3, 32, 32))) <= covered


@pytest.mark.slow
@pytest.mark.parametrize("names", [CLASSIFIERS, pytest.param(tuple(CLASSIFICATION_NAMES), marks=pytest.mark.zoo)])
def test_operators_of_gluoncvs_classifiers_are_in_a_table(covered, names):
    from gluoncv.model_zoo import get_model

    found = set()
    for name in sorted(names):
        try:
            found |= operators_of(get_model(name, pretrained=False))
        except NotTraceable:
            assert name.endswith("_gn")  # a group norm that reshapes by an argument that MXNet 1.9.1 has not
    assert found - covered == set()


@pytest.mark.parametrize("name", ["SELU", "AvgPool2D [3, 2, 0, True]"])
def test_mended_operators_are_wrong_in_mxnet(name):
    """Otherwise the table could not fail."""
    (case,) = [case for case in CASES if case.name == name]
    assert wrong(case, mend=False) and not wrong(case)
