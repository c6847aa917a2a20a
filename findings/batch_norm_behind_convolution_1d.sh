#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: Conv1D and BatchNorm train together, as Conv2D and BatchNorm do.
# What happened: with 4 or 12 channels they do. With a multiple of 8 (8, 16, 32) the backward pass raises "Check failed:
# !is_view", in 1D and in 3D, also after hybridize; inference works. The likely reason is that oneDNN keeps the output
# of such convolutions in blocks of channels and BatchNorm in 1D and 3D reads a view of it. Seen on a CPU with AVX-512.
# Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import autograd, gluon, nd

CONVOLUTIONS = {1: gluon.nn.Conv1D, 2: gluon.nn.Conv2D, 3: gluon.nn.Conv3D}


def train(dimensions, channels):
    """Returns the error of one training step, or "trains"."""
    net = gluon.nn.HybridSequential()
    net.add(CONVOLUTIONS[dimensions](channels, 3, in_channels=2), gluon.nn.BatchNorm(in_channels=channels))
    net.initialize()
    x = nd.random.normal(shape=(2, 2) + (8,) * dimensions)
    net(x).wait_to_read()
    try:
        with autograd.record():
            y = net(x)
        y.backward()
        nd.waitall()
    except mx.MXNetError as error:
        return str(error).strip().splitlines()[-1]
    return "trains"


print(f"mxnet {mx.__version__}: a training step of a convolution and BatchNorm")
found = {}
for dimensions in CONVOLUTIONS:
    for channels in (12, 16):
        found[dimensions, channels] = train(dimensions, channels)
        print(f"  {dimensions}D, {channels} channels: {found[dimensions, channels]}")
for (dimensions, channels), result in found.items():
    assert ("!is_view" in result) == (dimensions != 2 and channels == 16), (dimensions, channels)
PYTHON
