#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: gamma and beta of GroupNorm have one number for each channel, as in the paper (section 3.1: "a per-channel
# linear transform"), PyTorch and ONNX (since opset 21).
# What happened: they have one number for each group, in gluon.nn and in the operator; an array of one number for each
# channel is refused. A converted GroupNorm with different factors inside a group can't be written as one layer.
# Source: Wu and He, Group Normalization, https://arxiv.org/abs/1803.08494. Exit code 0 as long as this is so.
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

x = nd.random.normal(shape=(2, 6, 5))
layer = gluon.nn.GroupNorm(num_groups=2)
layer.initialize()
layer(x)
y = nd.GroupNorm(x, nd.array([1, 10]), nd.zeros(2), num_groups=2)
spread = y.asnumpy().std((0, 2)).round(1)
try:
    nd.GroupNorm(x, nd.ones(6), nd.zeros(6), num_groups=2).wait_to_read()
    refused = ""
except mx.MXNetError as error:
    refused = [line for line in str(error).splitlines() if "hape" in line][-1].strip()
print(f"mxnet {mx.__version__}: 6 channels, 2 groups")
print(f"  shape of gamma in gluon.nn.GroupNorm: {layer.gamma.shape}")
print(f"  standard deviation of each channel with gamma (1, 10): {spread}")
print(f"  gamma of 6 numbers: {refused or 'taken'}")
assert layer.gamma.shape == (2,) and np.all(spread[:3] < 2) and np.all(spread[3:] > 5) and refused
PYTHON
