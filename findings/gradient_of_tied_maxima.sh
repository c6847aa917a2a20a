#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: where the largest element occurs twice, max passes its gradient on to the first one or shares it, so that the
# sum of the gradient stays the same.
# What happened: max (and min) give the whole gradient to each of them, so the sum grows with the number of ties: a
# maximum over dead units, all 0, has as many times the gradient. nd.maximum gives it to its first array, max pooling to
# the first element. PyTorch 2.14 shares it in amax and maximum. Exit code 0 as long as this is so.
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

points = np.array([[0, 0, 0, 0]], np.float32)


def gradient(function):
    """Returns the gradient of a function of four zeros."""
    x = nd.array(points)
    x.attach_grad()
    with autograd.record():
        y = function(x)
    y.backward()
    return x.grad.asnumpy()[0].tolist()


print(f"mxnet {mx.__version__}: gradient at four zeros")
found = {
    "max": gradient(lambda x: nd.max(x, axis=1)),
    "min": gradient(lambda x: nd.min(x, axis=1)),
    "maximum with 0": gradient(lambda x: nd.maximum(x, nd.zeros((1, 4)))),
    "0 as the first": gradient(lambda x: nd.maximum(nd.zeros((1, 4)), x)),
    "max pooling": gradient(lambda x: nd.Pooling(x.expand_dims(0), kernel=(4,), pool_type="max")),
}
for name, numbers in found.items():
    print(f"  {name:14} {numbers}")
assert found["max"] == found["min"] == found["maximum with 0"] == [1, 1, 1, 1]
assert found["0 as the first"] == [0, 0, 0, 0] and found["max pooling"] == [1, 0, 0, 0]
PYTHON
