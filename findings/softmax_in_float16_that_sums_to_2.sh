#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: a softmax in float16 sums to 1 within the precision of float16, whatever the number of classes, and a mean of
# ones is 1.
# What happened: the denominator is added up in float16, which ends at 2048 for ones, so a softmax of 5000 equal logits
# sums to 2.44. A warning recommends MXNET_SAFE_ACCUMULATION=1, which gives 1. The mean of 70000 ones is NaN, as the
# number of elements is infinite in float16. That of 5000 is right. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import os

import mxnet as mx
import numpy as np
from mxnet import nd


def results():
    """Returns the sum of a softmax of 5000 equal logits, and means of 5000 and 70000 ones, in float16."""
    total = nd.softmax(nd.zeros((1, 5000), dtype="float16")).astype("float32").sum().asscalar()
    means = [nd.ones((1, count), dtype="float16").mean(axis=1).asscalar() for count in (5000, 70000)]
    return [round(float(value), 2) for value in (total, *means)]


print(f"mxnet {mx.__version__}, float16: sum of a softmax of 5000 logits, mean of 5000 and of 70000 ones")
usual = results()
os.environ["MXNET_SAFE_ACCUMULATION"] = "1"
safe = results()
print(f"  {usual}\n  {safe} with MXNET_SAFE_ACCUMULATION=1")
assert usual[:2] == [2.44, 1] and np.isnan(usual[2]) and safe[0] == 1
PYTHON
