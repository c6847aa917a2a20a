#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: LBSGD(batch_scale=2) updates by the gradients of two batches, 1 and 3.
# What happened: it keeps the array of the first gradient, not a copy. Where the second batch writes its gradient to the
# same array, as Gluon and Module do, the update is by 3 and 3. With an array of its own for each gradient it is by 1
# and 3. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import nd


def weight_after(same_array):
    """Returns a weight of 1 after the gradients 1, 3, 1 and 3."""
    optimizer = mx.optimizer.LBSGD(
        learning_rate=0.1, momentum=0.0, batch_scale=2, warmup_strategy="linear", warmup_epochs=0, updates_per_epoch=1
    )
    weight, gradient = nd.ones((1,)), nd.zeros((1,))
    state = optimizer.create_state(0, weight)
    for value in (1.0, 3.0, 1.0, 3.0):
        if same_array:
            gradient[:] = value
        else:
            gradient = nd.array([value])
        optimizer.update(0, weight, gradient, state)
    return round(float(weight.asscalar()), 3)


own, same = weight_after(False), weight_after(True)
print(f"mxnet {mx.__version__}: a weight of 1 after four gradients: {own}, and {abs(same)} if they share an array")
assert own == 0.2 and abs(same) < 1e-6
PYTHON
