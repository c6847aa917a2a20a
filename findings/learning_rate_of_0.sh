#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: with a learning rate of 0, as at the end of a schedule, an optimizer leaves weights without decay as they are.
# What happened: SGD, Adam, RMSProp, LAMB and others do. FTRL and FTML make them NaN, AdaDelta moves them as with any
# other rate, SGLD raises. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import nd


def weights(name):
    """Returns the weights, which were 1, after two updates with a learning rate of 0, or the error."""
    optimizer = mx.optimizer.create(name, learning_rate=0.0)
    weight = nd.ones((2,))
    state = optimizer.create_state_multi_precision(0, weight)
    try:
        for _ in range(2):
            optimizer.update_multi_precision(0, weight, nd.array([1.0, -2.0]), state)
        return [round(float(value), 3) for value in weight.asnumpy()]
    except mx.MXNetError:
        return "MXNetError"


names = ("sgd", "adam", "rmsprop", "lamb", "ftrl", "ftml", "adadelta", "sgld")
found = {name: weights(name) for name in names}
print(f"mxnet {mx.__version__}: weights of 1 after two updates with a learning rate of 0")
for name, value in found.items():
    print(f"  {name:10} {value}")
assert all(found[name] == [1, 1] for name in names[:4]) and str(found["ftrl"]) == str(found["ftml"]) == "[nan, nan]"
assert found["adadelta"][0] < 1 < found["adadelta"][1] and found["sgld"] == "MXNetError"
PYTHON
