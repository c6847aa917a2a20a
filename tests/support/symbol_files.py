"""Files of networks as MXNet's Module writes them, and the networks that mxtrain builds of them."""

import numpy as np

from mxtrain.config.groups import build_group
from mxtrain.engine.backend import mx
from mxtrain.model.prepare import prepare_network


def features(data=None):
    """A small convolutional network up to its dense layer."""
    sym = mx.sym
    x = sym.Convolution(sym.var("data") if data is None else data, num_filter=4, kernel=(3, 3), name="conv1")
    x = sym.BatchNorm(x, name="bn1")
    x = sym.Activation(x, act_type="relu", name="relu1")
    return sym.FullyConnected(sym.Flatten(x, name="flat1"), num_hidden=3, name="fc1")


def write(folder, output, epoch=3, name="old", change=lambda arrays: arrays, image_shape=(1, 6, 6)):
    """Writes `output` and random weights as `Module.save_checkpoint` does; returns the prefix."""
    rng = np.random.RandomState(5)
    shapes, _, states = output.infer_shape_partial(data=(2, *image_shape))
    named = dict(zip(output.list_arguments(), shapes))
    arrays = {
        f"arg:{key}": rng.randn(*shape).astype("float32")
        for key, shape in named.items()
        if key != "data" and not key.endswith("label")
    }
    arrays.update(
        {
            f"aux:{key}": np.abs(rng.randn(*shape)).astype("float32")
            for key, shape in zip(output.list_auxiliary_states(), states)
        }
    )
    prefix = str(folder / name)
    output.save(f"{prefix}-symbol.json")
    mx.nd.save(
        f"{prefix}-{epoch:04d}.params", {key: mx.nd.array(a, dtype=a.dtype) for key, a in change(arrays).items()}
    )
    return prefix


def described(**settings):
    return build_group("model", {"_target_": "mxtrain.model.symbol.model.SymbolFile", **settings}, lambda path: "test")


def prepared(num_classes=3, **settings):
    return prepare_network(described(**settings), num_classes=num_classes, input_shape=(1, 6, 6), seed=0)


def outputs(network, seed=1):
    image = mx.nd.array(np.random.RandomState(seed).randn(2, 1, 6, 6))
    return network(image).asnumpy()
