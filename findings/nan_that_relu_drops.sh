#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: NaN stays NaN in Activation(act_type="relu"), relu, max and max pooling, or all of them drop it.
# What happened: nd.relu keeps NaN, in the value and the gradient. Activation("relu") (gluon.nn.Activation and
# Dense(activation="relu")) makes it 0 with a gradient of 0, so a network that diverged goes on as if units were dead.
# Max pooling drops it, nd.max keeps it; clip and LeakyReLU keep it in the value and pass a gradient of 1. topk takes
# another element as the largest than argmax. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
import numpy as np
from mxnet import autograd, nd

functions = {
    "Activation relu": lambda x: nd.Activation(x, act_type="relu"),
    "relu": nd.relu,
    "clip": lambda x: nd.clip(x, 0, 9),
    "LeakyReLU": lambda x: nd.LeakyReLU(x, act_type="leaky"),
}
print(f"mxnet {mx.__version__}: value and gradient of NaN")
found = {}
for name, function in functions.items():
    x = nd.array([1.5, np.nan, -1])
    x.attach_grad()
    with autograd.record():
        y = function(x)
    y.backward()
    found[name] = str(y.asnumpy()[1]), str(x.grad.asnumpy()[1])
    print(f"  {name:16} {' '.join(found[name])}")
x = nd.array([0.5, np.nan, 1.5, -1])
largest = {
    "Pooling max": nd.Pooling(x.reshape((1, 1, 4)), kernel=(4,), pool_type="max"),
    "max": nd.max(x),
    "argmax": nd.argmax(x, axis=0),
    "topk": nd.topk(x, k=1),
}
largest = {name: str(value.asnumpy().ravel()[0]) for name, value in largest.items()}
print("  (0.5, NaN, 1.5, -1):", ", ".join(f"{name} {value}" for name, value in largest.items()))
assert found == {
    "Activation relu": ("0.0", "0.0"),
    "relu": ("nan", "nan"),
    "clip": ("nan", "1.0"),
    "LeakyReLU": ("nan", "1.0"),
}
assert largest["Pooling max"] == "1.5" and largest["max"] == "nan" and largest["argmax"] == "1.0" != largest["topk"]
PYTHON
