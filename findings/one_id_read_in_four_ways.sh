#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: the id -1 is an error, or the last row, in each operator that looks something up by id.
# What happened: no operator refuses it, and they differ. Embedding, take and pick read the first row; gather_nd reads
# the last; one_hot gives a row of zeros; SoftmaxCrossEntropyLoss counts it as the first class, and a class beyond the
# last as the last. So a label of -1 ("ignore" elsewhere) trains class 0. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import gluon, nd

row, column = nd.array([10, 20, 30]), nd.array([[10], [20], [30]])
loss = gluon.loss.SoftmaxCrossEntropyLoss()
logits = nd.array([[1, 2, 3]])
found = {
    "Embedding": nd.Embedding(nd.array([-1]), column, input_dim=3, output_dim=1),
    "take": nd.take(row, nd.array([-1])),
    "pick": nd.pick(row.reshape((1, 3)), nd.array([-1])),
    "gather_nd": nd.gather_nd(row, nd.array([[-1]])),
    "one_hot": nd.one_hot(nd.array([-1]), 3).sum(axis=1) * 10,
}
found = {name: float(value.asnumpy().ravel()[0]) for name, value in found.items()}
losses = {label: round(float(loss(logits, nd.array([label])).asscalar()), 4) for label in (-1, 0, 2, 7)}
print(
    f"mxnet {mx.__version__}: row -1 of (10, 20, 30):", ", ".join(f"{name} {value:g}" for name, value in found.items())
)
print("  cross entropy of 3 classes by label:", losses)
assert found == {"Embedding": 10, "take": 10, "pick": 10, "gather_nd": 30, "one_hot": 0}
assert losses[-1] == losses[0] and losses[7] == losses[2]
PYTHON
