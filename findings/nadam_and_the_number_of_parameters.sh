#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: an optimizer treats each parameter by itself, so a parameter moves the same way beside others that it has
# nothing to do with.
# What happened: Nadam keeps one product of its momentum schedule for all parameters and multiplies it at each update of
# each of them, so the steps of a parameter depend on how many others there are (and the rank of a parameter in their
# order). Adam, AdaMax and FTML don't.
# Source: python/mxnet/optimizer/optimizer.py, Nadam.update, "self.m_schedule = self.m_schedule * momentum_t". Exit code
# 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import autograd, gluon


def trained(optimizer, count):
    """Returns the first of a number of equal parameters after 5 steps on the sum of their squares."""
    parameters = [gluon.Parameter(f"p{index}_weight", shape=(1,)) for index in range(count)]
    for parameter in parameters:
        parameter.initialize(mx.init.One())
    trainer = gluon.Trainer({parameter.name: parameter for parameter in parameters}, optimizer, {"learning_rate": 0.1})
    for _ in range(5):
        with autograd.record():
            loss = sum((parameter.data() ** 2).sum() for parameter in parameters)
        loss.backward()
        trainer.step(1)
    return float(parameters[0].data().asscalar())


print(f"mxnet {mx.__version__}: a parameter after 5 steps, alone and beside 2 and 20 others")
found = {}
for optimizer in ("adam", "adamax", "ftml", "nadam"):
    found[optimizer] = [trained(optimizer, count) for count in (1, 3, 21)]
    print(f"  {optimizer:7}", *(f"{value:.5f}" for value in found[optimizer]))
for optimizer, values in found.items():
    assert (max(values) - min(values) > 0.01) == (optimizer == "nadam")
PYTHON
