#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: dropout=0.9 drops outputs between the layers of gluon.rnn.LSTM in training, on each device, and sequence_length
# ends sequences.
# What happened: on the CPU both arguments are taken and do nothing: two passes in training mode are equal to the last
# bit, and equal to those of inference; a bidirectional LSTM with use_sequence_length gives the same result for lengths
# 1 and 4. Exit code 0 as long as this is so.
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

x = nd.random.normal(shape=(4, 3, 2))
print(f"mxnet {mx.__version__}, CPU: largest difference between")
for name in ("LSTM", "GRU", "RNN"):
    layer = getattr(gluon.rnn, name)(5, num_layers=2, dropout=0.9, input_size=2)
    layer.initialize(mx.init.Normal(1))
    with autograd.record():
        first, second = layer(x).asnumpy(), layer(x).asnumpy()
    differences = np.abs(first - second).max(), np.abs(first - layer(x).asnumpy()).max()
    print(f"  {name}: two passes in training {differences[0]}, training and inference {differences[1]}")
    assert max(differences) == 0
layer = gluon.rnn.LSTM(5, bidirectional=True, use_sequence_length=True, input_size=2)
layer.initialize(mx.init.Normal(1))
short, whole = (layer(x, sequence_length=nd.array([length] * 3)).asnumpy() for length in (1, 4))
print(f"  bidirectional LSTM: lengths 1 and 4 of 4 {np.abs(short - whole).max()}")
assert np.abs(short - whole).max() == 0
PYTHON
