#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: `x.reshape(shape)` and `nd.reshape(x, shape)` are the same function, so MaxPool of either has the same
# gradient.
# What happened: the method returns a view. Max pooling of a view (or of `x[1:3]`) has the right value, and its gradient
# goes to random elements of each window: MXNet's own kernel computes the value, and oneDNN's backward pass reads
# positions of maxima that nobody has written. The same in `autograd.record(train_mode=False)`. Exit code 0 as long as
# this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import mxnet as mx
import numpy as np
from mxnet import autograd, nd

data = np.random.RandomState(0).randn(4, 128).astype(np.float32)
pairs = data.reshape(4, 8, 8, 2)
expected = (pairs == pairs.max(-1, keepdims=True)).reshape(4, 128)


def right(view, train_mode=True):
    """Returns how many of 20 gradients are those of the maxima."""
    count = 0
    for _ in range(20):
        x = nd.array(data)
        x.attach_grad()
        with autograd.record(train_mode=train_mode):
            y = nd.Pooling(view(x), kernel=(2,), stride=(2,), pool_type="max")
        y.backward(train_mode=train_mode)
        assert np.array_equal(y.asnumpy(), pairs.max(-1))
        count += np.array_equal(x.grad.asnumpy(), expected)
    return count


found = {
    "x.reshape(shape)": right(lambda x: x.reshape((4, 8, 16))),
    "x.reshape(shape) + 0": right(lambda x: x.reshape((4, 8, 16)) + 0),
    "nd.reshape(x, shape)": right(lambda x: nd.reshape(x, (4, 8, 16))),
    "nd.reshape, record(train_mode=False)": right(lambda x: nd.reshape(x, (4, 8, 16)), False),
}
print(f"mxnet {mx.__version__}, numpy {np.__version__}: right gradients of max pooling, of 20")
for name, count in found.items():
    print(f"  {name:40} {count}")
counts = list(found.values())
raise SystemExit(0 if counts[1:3] == [20, 20] and max(counts[0], counts[3]) < 20 else 1)
PYTHON
