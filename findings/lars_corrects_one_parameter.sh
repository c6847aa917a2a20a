#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: LARS(momentum_correction=True) scales the momentum of all parameters by the ratio of the learning rates when a
# schedule changes the rate.
# What happened: only the parameter that is updated first gets it. The optimizer remembers the new rate as the last one
# after that parameter, so the ratio is 1 for all others, and two equal parameters with equal gradients drift apart.
# Without the correction they stay equal. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import nd


def weights(correction):
    """Returns two equal weights with equal gradients after four updates, in which the rate is halved three times."""
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=1.0)
    optimizer = mx.optimizer.LARS(
        learning_rate=1.0, lr_scheduler=schedule, momentum=0.9, momentum_correction=correction, eta=0.1
    )
    pair = [nd.ones((3,)), nd.ones((3,))]
    states = [optimizer.create_state_multi_precision(index, weight) for index, weight in enumerate(pair)]
    for _ in range(4):
        for index, weight in enumerate(pair):
            optimizer.update_multi_precision(index, weight, nd.array([1.0, 2.0, 3.0]), states[index])
    return [[round(float(value), 3) for value in weight.asnumpy()] for weight in pair]


found = {correction: weights(correction) for correction in (True, False)}
print(f"mxnet {mx.__version__}: two equal parameters after four updates by LARS")
for correction, (first, second) in found.items():
    print(f"  momentum_correction={correction!s:6} {first} {second}")
assert found[True][0] != found[True][1] == found[False][0] == found[False][1]
PYTHON
