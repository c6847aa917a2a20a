"""A network of two forms computes the one that its inputs ask for, whatever ran before and whatever autograd's mode."""

import numpy as np
import pytest


@pytest.fixture
def network():
    from mxtrain.engine.backend import gluon
    from mxtrain.model.networks.train_predict_block import TrainPredictBlock

    class Forms(TrainPredictBlock):
        def __init__(self):
            super().__init__(prefix="forms_")
            with self.name_scope():
                self.layer = gluon.nn.Dense(2, in_units=3)

        def predict_forward(self, F, x):
            return self.layer(x)

        def train_forward(self, F, x, *known):
            return self.layer(x) + known[0]

    made = Forms()
    made.initialize()
    return made


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_number_of_inputs_selects_the_form(network, is_hybrid):
    from mxtrain.engine.backend import autograd, nd

    network.hybridize(is_hybrid, static_alloc=is_hybrid)
    x, known = nd.ones((4, 3)), nd.full((4, 2), 7.0)
    for _ in range(2):
        with autograd.record():
            trained = network(x, known)
            recorded = network(x)
        predicted = network(x)
        np.testing.assert_allclose((trained - known).asnumpy(), predicted.asnumpy(), atol=1e-5)
        np.testing.assert_array_equal(recorded.asnumpy(), predicted.asnumpy())
    network.layer.weight.set_data(nd.zeros((2, 3)))
    assert not network(x).asnumpy().any() and (network(x, known).asnumpy() == 7).all()


def test_parameters_are_there_once_and_both_forms_are_cast(network):
    from mxtrain.engine.backend import nd
    from mxtrain.model.graph.trace import trace

    assert set(network._collect_params_with_prefix()) == {"layer.weight", "layer.bias"}
    assert len(network.collect_params().keys()) == 2
    network.hybridize()
    network(nd.ones((1, 3))), network(nd.ones((1, 3)), nd.ones((1, 2)))
    network.cast("float64")
    for known in ((), (nd.ones((1, 2), dtype="float64"),)):
        assert network(nd.ones((1, 3), dtype="float64"), *known).dtype == np.float64
    assert [node.op for node in trace(network, (3,)).nodes if node.op != "null"] == ["FullyConnected"]
    both = [node.op for node in trace(network, ((3,), (2,))).nodes if node.op != "null"]
    assert len(both) == 2 and trace(network, (3,)).nodes[-1].layer == "layer"
