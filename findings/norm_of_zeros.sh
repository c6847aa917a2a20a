#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: the gradient of nd.norm of a vector of zeros is 0, as in PyTorch, so that a row of zeros does no harm.
# What happened: it is NaN, also along an axis, where one such row makes NaN of its own gradient and then of all weights
# before it. L2Normalization, whose eps is below the root, has a finite one, which is 1e5 there: 1 / sqrt(1e-10).
# Exit code 0 as long as this is so.
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

rows = np.array([[3, 4], [0, 0]], np.float32)


def gradient(function):
    """Returns the gradient of the sum of a function of the rows."""
    x = nd.array(rows)
    x.attach_grad()
    with autograd.record():
        y = function(x)
    y.backward()
    return x.grad.asnumpy()


print(f"mxnet {mx.__version__}: gradient at (3, 4) and (0, 0)")
of_norm, normalised = gradient(lambda x: nd.norm(x, axis=1)), gradient(nd.L2Normalization)
print(f"  norm            {of_norm.round(3).tolist()}")
print(f"  L2Normalization {normalised.round(3).tolist()}")
assert np.allclose(of_norm[0], [0.6, 0.8]) and np.isnan(of_norm[1]).all()
assert np.allclose(normalised[1], 1e5)
PYTHON
