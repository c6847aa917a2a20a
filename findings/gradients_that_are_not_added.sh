#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: with grad_req="add" two backward passes give twice the gradient, whatever the operator is.
# What happened: the backward passes of clip, flip, split_v2 and cumsum overwrite the gradient of an array that they
# read directly, so only the last pass counts (a ratio of 1). Those of mean and moments add, and then divide the sum by
# the number of elements, 4 here (1 + 1 / 4). Others (exp, sum, relu) add (2). Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import mxnet as mx
import numpy as np
from mxnet import autograd, nd

data = np.linspace(-1, 1, 12).reshape(3, 4)


def ratio(function):
    """Returns the gradient of two passes with grad_req="add" over that of one pass."""
    gradients = []
    for passes in (1, 2):
        x = nd.array(data)
        x.attach_grad("add")
        for _ in range(passes):
            with autograd.record():
                y = (function(x) * nd.arange(1, 1 + function(x).size).reshape(function(x).shape)).sum()
            y.backward()
        gradients.append(x.grad.asnumpy())
    return float(np.abs(gradients[1]).sum() / np.abs(gradients[0]).sum())


functions = {
    "clip": (lambda x: nd.clip(x, -0.5, 0.5), 1), "flip": (lambda x: nd.flip(x, axis=0), 1),
    "split_v2": (lambda x: nd.split_v2(x, (1, 3), axis=1)[1], 1), "cumsum": (lambda x: nd.cumsum(x, axis=1), 1),
    "mean": (lambda x: nd.mean(x, axis=1), 1.25), "moments": (lambda x: nd.moments(x, axes=(1,))[1], 1.25),
    "exp": (nd.exp, 2), "sum": (lambda x: nd.sum(x, axis=1), 2), "relu": (nd.relu, 2),
}
print(f"mxnet {mx.__version__}, numpy {np.__version__}: gradient of two passes over that of one (right: 2)")
changed = False
for name, (function, expected) in functions.items():
    found = ratio(function)
    changed |= abs(found - expected) > 1e-3
    print(f"  {name:14} {found:.3f}")
raise SystemExit(int(changed))
PYTHON
