"""Shared by the tests of networks."""

import pytest


@pytest.fixture
def prepare():
    """Prepare a network from a description; small colour images and seed 0 unless told otherwise."""
    from mxtrain.model.prepare import prepare_network

    def call(model, num_classes=10, input_shape=(3, 32, 32), seed=0):
        return prepare_network(model, num_classes=num_classes, input_shape=input_shape, seed=seed).network

    return call


@pytest.fixture
def train_step():
    """Run forward and backward on a random batch of two; gives the output."""
    from mxtrain.engine.backend import autograd, nd

    def call(network, input_shape):
        data = nd.random.normal(shape=(2, *input_shape))
        with autograd.record():
            output = network(data)
            loss = (output * output).mean()
        loss.backward()
        nd.waitall()
        return output

    return call


@pytest.fixture
def close_table_servers():
    """Closes the servers of tables that the test has started."""
    from table_threads import OPEN

    yield
    while OPEN:
        OPEN.pop().close()
