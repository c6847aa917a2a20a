#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: rint rounds halves to even, as C's rint, NumPy's and PyTorch's round do; round does the same, or rounds away
# from 0.
# What happened: round rounds away from 0. rint rounds halves down, in either sign: 0.5 to 0, 1.5 to 1, 2.5 to 2, -0.5
# to -1. So rint(x) and rint(-x) differ by more than the sign, and a mean of rounded numbers is too small.
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
from mxnet import nd

halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
print(f"mxnet {mx.__version__}: {halves}")
found = {name: function(nd.array(halves)).asnumpy() for name, function in (("round", nd.round), ("rint", nd.rint))}
found["numpy.rint"] = np.rint(halves)
for name, rounded in found.items():
    print(f"  {name:10} {rounded}")
assert found["round"].tolist() == [-3, -2, -1, 1, 2, 3]
assert found["rint"].tolist() == [-3, -2, -1, 0, 1, 2] != found["numpy.rint"].tolist()
PYTHON
