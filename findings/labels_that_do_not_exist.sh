#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: a class index out of range is an error, and -100, which PyTorch leaves out, is one, too.
# What happened: SoftmaxCELoss (pick) and Embedding take the nearest index without a message: -100 trains class 0, and
# 255 (the ignored pixels of many masks) the last class. one_hot gives a row of zeros, so that the same loss of dense
# labels is 0 there. Exit code 0 as long as this is so.
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

scores = nd.array([[1, 2, 4]] * 4)
labels = nd.array([-100, 0, 2, 255])
sparse = gluon.loss.SoftmaxCELoss()(scores, labels).asnumpy()
dense = gluon.loss.SoftmaxCELoss(sparse_label=False)(scores, nd.one_hot(labels, 3)).asnumpy()
rows = nd.Embedding(labels, nd.array([[0], [1], [2]]), input_dim=3, output_dim=1).asnumpy().ravel()
print(f"mxnet {mx.__version__}: labels {labels.asnumpy()} of three classes")
print(f"  loss of indices  {sparse.round(3)}")
print(f"  loss of one_hot  {dense.round(3)}")
print(f"  row of Embedding {rows}")
assert np.allclose(sparse[0], sparse[1]) and np.allclose(sparse[2], sparse[3])
assert np.allclose(dense[[0, 3]], 0) and np.allclose(dense[1:3], sparse[1:3])
assert rows.tolist() == [0, 0, 2, 2]
PYTHON
