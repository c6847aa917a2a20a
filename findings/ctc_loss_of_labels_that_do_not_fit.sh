#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: CTC loss of a label that no alignment gives is infinite (as in PyTorch), or an error. The label (1, 1, 2) needs
# 4 steps: a blank has to separate equal classes.
# What happened: in 3 steps the loss is 0, the best there is, and the mean over a batch looks better for it. (More
# labels than steps are refused.) The gradient beside this loss of 0 is another one in each process, from 1e-24 to 1e32,
# as if nobody had written it. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import autograd, gluon, nd

criterion = gluon.loss.CTCLoss()
print(f"mxnet {mx.__version__}: loss and largest gradient of CTC, 5 equal logits")
found = {}
for label, steps in [((1, 2, 3), 3), ((1, 1, 2), 3), ((1, 1, 2), 4), ((1, 1, 1), 3), ((1, 1, 1), 5)]:
    x = nd.zeros((1, steps, 5))
    x.attach_grad()
    with autograd.record():
        loss = criterion(x, nd.array([label]))
    loss.backward()
    found[label, steps] = float(loss.asscalar()), float(x.grad.abs().max().asscalar())
    print(f"  label {label} in {steps} steps: {found[label, steps][0]:.4f} {found[label, steps][1]:.3g}")
for (label, steps), (loss, gradient) in found.items():
    assert (loss == 0) == (label != (1, 2, 3) and steps == 3), (label, steps)
PYTHON
