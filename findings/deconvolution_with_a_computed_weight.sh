#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: the weight of Deconvolution may be the result of other operators, like that of Convolution.
# What happened: on a CPU the backward pass ends the process or fails with "could not execute a primitive", imperative
# and in graphs: oneDNN is given the weight's gradient before MXNet has allocated it. A parameter as weight is right, as
# is a computed weight in float64, for which MXNet has its own kernel. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
cat > backward.py <<'PYTHON'
import sys

from mxnet import autograd, nd

operator, weight_is, dtype = sys.argv[1:]
x, weight = nd.ones((1, 2, 4, 4), dtype=dtype), nd.ones((2, 2, 3, 3), dtype=dtype)
weight.attach_grad()
with autograd.record():
    w = weight * 1 if weight_is == "computed" else weight
    y = getattr(nd, operator)(x, w, kernel=(3, 3), num_filter=2, no_bias=True)
y.backward()
assert weight.grad.asnumpy().all()
PYTHON
changed=0
for arguments in "Deconvolution parameter float32" "Deconvolution computed float32" "Deconvolution computed float64" \
                 "Convolution computed float32"; do
  code=0
  venv/bin/python -W ignore backward.py $arguments > /dev/null 2>&1 || code=$?
  echo "$arguments: exit code $code"
  fails=0
  [ "$code" -eq 0 ] || fails=1
  expected=0
  [ "$arguments" != "Deconvolution computed float32" ] || expected=1
  [ "$fails" -eq "$expected" ] || changed=1
done
exit "$changed"
