#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: a forward pass in training mode moves the running statistics of BatchNorm once, whether or not a backward pass
# follows.
# What happened: they move in the backward pass. A forward pass alone leaves (0, 1); two backward passes of one forward
# pass move them twice; with gamma and beta frozen (and nothing in front that is trained) they never move, although the
# head behind is trained and the layer normalizes with the statistics of the batch. So statistics can't be collected
# anew without computing gradients. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import autograd, gluon, nd

x = nd.random.normal(5, 2, shape=(64, 3))


def mean(passes, frozen=False):
    """Returns the running mean (momentum 0.9) of one forward pass in training mode and a number of backward passes."""
    norm, head = gluon.nn.BatchNorm(in_channels=3), gluon.nn.Dense(1, in_units=3)
    norm.initialize()
    head.initialize()
    if frozen:
        norm.gamma.grad_req = norm.beta.grad_req = "null"
    with autograd.record():
        y = head(norm(x))
    y.wait_to_read()
    for _ in range(passes):
        y.backward(retain_graph=True)
    nd.waitall()
    return round(float(norm.running_mean.data().mean().asscalar()), 2)


found = {"forward": mean(0), "forward, backward": mean(1), "forward, backward twice": mean(2),
         "forward, backward, frozen gamma and beta": mean(1, frozen=True)}
print(f"mxnet {mx.__version__}: running mean of data with mean 5 (right, with momentum 0.9: 0.5)")
for name, value in found.items():
    print(f"  {name:42} {value}")
values = list(found.values())
assert values[0] == values[3] == 0 and 0.4 < values[1] < 0.6 and 0.85 < values[2] < 1.05
PYTHON
