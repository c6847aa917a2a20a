#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: a network that is exported and imported again (gluon.SymbolBlock.imports) can be initialized again as before:
# the weights by the initializer, biases and means 0, gammas and running variances 1.
# What happened: the parameters of an imported block have no initializer of their own, so the given one fills all of
# them: running variances become negative with Normal or Uniform; Xavier raises an error at the first bias, in the
# forward pass. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
import numpy as np
from mxnet import gluon, nd

x = nd.ones((1, 2))


def again(block, initializer):
    """Returns the running variances of a block that is initialized again and has seen an input, or the error."""
    block.initialize(initializer, force_reinit=True)
    try:
        block(x).wait_to_read()
    except ValueError as error:
        return str(error)
    return next(p.data().asnumpy() for n, p in block.collect_params().items() if n.endswith("running_var"))


def imported():
    """Returns the network, imported."""
    return gluon.SymbolBlock.imports("net-symbol.json", ["data"], "net-0000.params")


mx.random.seed(0)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(64, in_units=2), gluon.nn.BatchNorm(in_channels=64))
net.initialize()
net.hybridize()
net(x)
net.export("net")
print(f"mxnet {mx.__version__}: running variances after initialize(..., force_reinit=True)")
own, normal, xavier = (
    again(net, mx.init.Normal(1)),
    again(imported(), mx.init.Normal(1)),
    again(imported(), mx.init.Xavier()),
)
print(f"  network, Normal:          {own.min()} to {own.max()}")
print(f"  imported network, Normal: {normal.min():.2f} to {normal.max():.2f}")
print(f"  imported network, Xavier: {xavier}")
assert np.all(own == 1) and normal.min() < 0 and "cannot be applied to vector" in xavier
PYTHON
