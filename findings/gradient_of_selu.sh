#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: the gradient of LeakyReLU(act_type="selu") (gluon.nn.SELU) agrees with differences of its values.
# What happened: the values are right; the gradient below 0 is not, in float64 either: 0.0028 instead of 0.0875 at -3.
# Units that are negative learn too slowly, and nothing reports it. elu is right. Exit code 0 as long as this is so.
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

points = np.array([-3, -1, -0.1, 2])
step = 1e-5
print(f"mxnet {mx.__version__}: gradient and central differences in float64 at {points}")
wrong = {}
for act_type in ("elu", "selu"):
    x = nd.array(points, dtype="float64")
    x.attach_grad()
    with autograd.record():
        y = nd.LeakyReLU(x, act_type=act_type)
    y.backward()
    ahead, behind = (nd.LeakyReLU(x + shift, act_type=act_type).asnumpy() for shift in (step, -step))
    differences = (ahead - behind) / (2 * step)
    wrong[act_type] = np.abs(x.grad.asnumpy() - differences) > 1e-3
    print(f"  {act_type:5} {x.grad.asnumpy().round(4)} {differences.round(4)}")
assert not wrong["elu"].any() and wrong["selu"].tolist() == [True, True, True, False]
PYTHON
