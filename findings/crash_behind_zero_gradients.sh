#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: an operator whose gradient is 0 (round, >, argmax, BlockGrad, the condition of where) passes 0 to its input.
# What happened: the backward pass of round(sigmoid(dense(x))) ends the process with a segmentation fault. sigmoid,
# which receives only the 0, returns zeros_like of its input, which autograd has not kept. Nothing is wrong without an
# elementwise operator between, in a graph (CachedOp), or with add_n before round. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
cat > backward.py <<'PYTHON'
import sys

import mxnet as mx
from mxnet import autograd, nd

gates = {
    "dense, round": lambda F, h: F.round(h),
    "dense, sigmoid, round": lambda F, h: F.round(F.sigmoid(h)),
    "dense, sigmoid, add_n, round": lambda F, h: F.round(F.add_n(F.sigmoid(h))),
    "graph of dense, sigmoid, round": lambda F, h: F.round(F.sigmoid(h)),
}
name = sys.argv[1]
x, weight = nd.ones((2, 3)), nd.ones((4, 3))
weight.attach_grad()


def compute(F, x, weight):
    return gates[name](F, F.FullyConnected(x, weight, num_hidden=4, no_bias=True))


graph = nd.CachedOp(compute(mx.sym, mx.sym.var("x"), mx.sym.var("weight")))
with autograd.record():
    y = graph(x, weight) if name.startswith("graph") else compute(nd, x, weight)
y.backward()
assert not weight.grad.asnumpy().any()
PYTHON
changed=0
for name in "dense, round" "dense, sigmoid, round" "dense, sigmoid, add_n, round" "graph of dense, sigmoid, round"; do
  code=0
  venv/bin/python -W ignore backward.py "$name" > /dev/null 2>&1 || code=$?
  echo "$name: exit code $code"
  if [ "$name" = "dense, sigmoid, round" ]; then [ "$code" -ne 0 ] || changed=1; else [ "$code" -eq 0 ] || changed=1; fi
done
exit "$changed"
