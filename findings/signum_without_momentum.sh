#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: Signum with momentum=0 is Signum with the momentum at its limit: the sign of gradient plus decay.
# What happened: with momentum the decay wd is added to the gradient before the sign. Without, the sign is of the
# gradient alone and the weight is multiplied by 1 - lr wd: another formula, in which decay changes the size of each
# step. Weight 1, gradients 0.1 and -0.1, lr 0.1, wd 0.5: 0.9 and 0.9 with momentum, 0.85 and 1.05 without. Exit code 0
# as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import nd


def weights(momentum):
    """Returns weights of 1 after one update with gradients of 0.1 and -0.1."""
    optimizer = mx.optimizer.Signum(learning_rate=0.1, momentum=momentum, wd=0.5)
    weight = nd.ones((2,))
    optimizer.update(0, weight, nd.array([0.1, -0.1]), optimizer.create_state(0, weight))
    return [round(float(value), 3) for value in weight.asnumpy()]


found = {momentum: weights(momentum) for momentum in (0.9, 1e-6, 0.0)}
print(f"mxnet {mx.__version__}: weights of 1 after an update by Signum")
for momentum, value in found.items():
    print(f"  momentum {momentum:<6} {value}")
assert found == {0.9: [0.9, 0.9], 1e-6: [0.9, 0.9], 0.0: [0.85, 1.05]}
PYTHON
