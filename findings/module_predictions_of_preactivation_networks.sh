#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: a network that Gluon exports predicts the same in Module, up to rounding.
# What happened: with residual blocks that begin with a norm (ResNet v2), predictions of Module differ by a third of the
# largest output, in inference on a CPU. Module and simple_bind join operators for oneDNN by default: the sum is written
# over the shortcut, which the next norm still reads. With MXNET_SUBGRAPH_BACKEND=NONE they are equal. Without shortcuts
# both agree. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import os

import mxnet as mx
import numpy as np
from mxnet import gluon, nd


class Block(gluon.HybridBlock):
    """norm, ReLU, convolution, twice, and the sum with the input (pre-activation ResNet)."""

    def __init__(self, shortcut):
        super().__init__()
        self.shortcut = shortcut
        self.norms = gluon.nn.BatchNorm(), gluon.nn.BatchNorm()
        self.convolutions = [gluon.nn.Conv2D(64, 3, 1, 1, use_bias=False) for _ in range(2)]
        for block in (*self.norms, *self.convolutions):
            self.register_child(block)

    def hybrid_forward(self, F, x):
        y = x
        for norm, convolution in zip(self.norms, self.convolutions):
            y = convolution(F.Activation(norm(y), act_type="relu"))
        return y + x if self.shortcut else y


def difference(shortcut):
    """Returns the largest difference of the outputs of Gluon and Module, over the largest output."""
    mx.random.seed(0)
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Conv2D(64, 3, 1, 1, use_bias=False), Block(shortcut), Block(shortcut))
    network.add(gluon.nn.BatchNorm(), gluon.nn.Activation("relu"), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(10))
    network.initialize(mx.init.Xavier())
    x = nd.random.normal(shape=(4, 3, 32, 32))
    network.hybridize()
    outputs = network(x).asnumpy()
    network.export("network", 0)
    symbol, arguments, statistics = mx.model.load_checkpoint("network", 0)
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", x.shape)], for_training=False)
    module.set_params(arguments, statistics)
    module.forward(mx.io.DataBatch([x]), is_train=False)
    return float(np.abs(module.get_outputs()[0].asnumpy() - outputs).max() / np.abs(outputs).max())


usual, plain = difference(True), difference(False)
os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"
unjoined = difference(True)
print(f"mxnet {mx.__version__}: outputs of Module against Gluon, relative to the largest")
print(f"  with shortcuts {usual:.3f}, without {plain:.1e}, with shortcuts and MXNET_SUBGRAPH_BACKEND=NONE {unjoined:.1e}")
assert usual > 0.1 and plain < 1e-5 and unjoined < 1e-5
PYTHON
