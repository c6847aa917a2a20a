#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: clip_gradient limits the gradient in all optimizers at the same point, before weight decay is added.
# What happened: SGD, NAG, AdaGrad and AdaDelta clip first. Adam, RMSProp and FTML add decay, then clip the sum: with a
# gradient of 0.5, a weight of 100, wd=0.1 and clip_gradient=1 they see 1, the others 0.5 + 10. So the decay of large
# weights is limited, and their gradient does not count. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import nd

print(f"mxnet {mx.__version__}: weight after a step, weight 100, wd=0.1, clip_gradient=1")
found = {}
for name in ("sgd", "nag", "adagrad", "adadelta", "adam", "rmsprop", "ftml"):
    weights = []
    # The sign of a gradient makes no difference where the decay has used up the limit.
    for gradient in (0.5, -0.5):
        optimizer = mx.optimizer.create(name, learning_rate=0.1, wd=0.1, clip_gradient=1)
        weight = nd.array([100])
        state = optimizer.create_state(0, weight)
        optimizer.update(0, weight, nd.array([gradient]), state)
        weights.append(float(weight.asscalar()))
    found[name] = weights
    print(f"  {name:9} gradient 0.5: {weights[0]:.4f}, -0.5: {weights[1]:.4f}")
clipped_with_decay = {name for name, (one, other) in found.items() if abs(one - other) < 1e-6}
assert clipped_with_decay == {"adam", "rmsprop", "ftml"}
PYTHON
