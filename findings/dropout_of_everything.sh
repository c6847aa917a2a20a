#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: Dropout with p=1 gives zeros in training (as in PyTorch), or is refused, since p=0.999 gives zeros nearly
# everywhere.
# What happened: p=1 is taken and gives NaN for each element, in the value and in the gradient: those that stay are
# scaled by 1 / (1 - p), and 0 times infinity is NaN. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

print(f"mxnet {mx.__version__}: NaN among 1000 values and gradients of Dropout in training")
found = {}
for rate in (0, 0.5, 0.999, 1):
    x = nd.ones(1000)
    x.attach_grad()
    with autograd.record():
        y = gluon.nn.Dropout(rate)(x)
    y.backward()
    found[rate] = int(np.isnan(y.asnumpy()).sum()), int(np.isnan(x.grad.asnumpy()).sum())
    print(f"  p={rate}: {found[rate]}")
assert found == {0: (0, 0), 0.5: (0, 0), 0.999: (0, 0), 1: (1000, 1000)}
PYTHON
