#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: CosineScheduler (and PolyScheduler) start at base_lr and end above or at final_lr, as the formula in their
# documentation says for the number of updates made so far.
# What happened: Optimizer counts an update before it asks for the rate, so the first step gets the rate of update 1:
# base_lr is never used, and the last of 5 steps has a rate of 0, which changes nothing. MultiFactorScheduler is not
# shifted, because it compares with > instead of >=. PyTorch's schedules start at the full rate.
# Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import nd

schedules = {
    "cosine": lambda: mx.lr_scheduler.CosineScheduler(5, base_lr=1.0),
    "poly": lambda: mx.lr_scheduler.PolyScheduler(5, base_lr=1.0, pwr=1),
    "steps": lambda: mx.lr_scheduler.MultiFactorScheduler([2, 4], factor=0.1, base_lr=1.0),
}
print(f"mxnet {mx.__version__}: how far SGD moves a weight by gradients of 1 in each of 5 steps")
found = {}
for name, build in schedules.items():
    optimizer = mx.optimizer.create("sgd", lr_scheduler=build())
    weight, moved = nd.zeros(1), []
    for _ in range(5):
        before = weight.asscalar()
        optimizer.update([0], [weight], [nd.ones(1)], [None])
        moved.append(round(float(before - weight.asscalar()), 3))
    found[name] = moved
    print(f"  {name:7} {moved}")
assert found["cosine"] == [0.905, 0.655, 0.345, 0.095, 0] and found["poly"] == [0.8, 0.6, 0.4, 0.2, 0]
assert found["steps"] == [1, 1, 0.1, 0.1, 0.01]
PYTHON
