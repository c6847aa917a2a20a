#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: topk, argsort and argmax return the index of an element exactly.
# What happened: they return float32 by default, which rounds indices from 2^24 on: the largest of 16,777,224 elements
# is said to be at 16777220, where it is not. With dtype="int32", which topk and argsort take, it is at 16777219. argmax
# takes no such argument. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import nd

place = 2**24 + 3
x = nd.zeros((2**24 + 8,))
x[place] = 1
found = {
    "topk": int(nd.topk(x, k=1).asscalar()),
    "argmax": int(nd.argmax(x, axis=0).asscalar()),
    "topk, dtype='int32'": int(nd.topk(x, k=1, dtype="int32").asscalar()),
}
print(f"mxnet {mx.__version__}: index of the largest element, which is at {place}")
for name, value in found.items():
    print(f"  {name:20} {value}")
assert list(found.values()) == [place + 1, place + 1, place]
PYTHON
