from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.training.nonfinite import first_nonfinite_layer


class Log(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.log(x)


def network(*layers):
    net = gluon.nn.HybridSequential()
    net.add(*layers)
    net.initialize(mx.init.One())
    net.hybridize(static_alloc=True)
    return net


def test_names_the_first_layer_that_overflows():
    net = network(gluon.nn.Dense(3, in_units=3), Log(), gluon.nn.Dense(2, in_units=3))
    text = first_nonfinite_layer(net, nd.array([[-1.0, -1.0, -1.0]]))
    assert text == "the first layer with a non-finite output is '1' (Log)"


def test_non_finite_input_or_loss_is_named():
    net = network(gluon.nn.Dense(2, in_units=1))
    assert "input batch" in first_nonfinite_layer(net, nd.array([[float("nan")]]))
    assert "loss function" in first_nonfinite_layer(net, nd.array([[1.0]]))
