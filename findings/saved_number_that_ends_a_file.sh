#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: nd.load reads what nd.save has written.
# What happened: nd.array(5) makes an array of shape (), which nd.save writes without a type and data, and without an
# error; nd.load then takes the next array for the rest of it and fails, so the other arrays of the file are lost, too.
# Results of operators (sum, mean) have the shape (1,) and are not concerned. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import nd

print(f"mxnet {mx.__version__}: a number saved before a weight, and what is read")
found = {}
for name, number in {"nd.array([5])": nd.array([5]), "nd.array([2, 3]).sum()": nd.array([2, 3]).sum(), "nd.array(5)": nd.array(5)}.items():
    nd.save("arrays", {"number": number, "weight": nd.array([1, 2])})
    try:
        found[name] = ", ".join(f"{key} {value.asnumpy()}" for key, value in nd.load("arrays").items())
    except mx.MXNetError as error:
        found[name] = str(error).strip().splitlines()[-1]
    print(f"  {name:23} {number.shape!s:5} {found[name]}")
whole = "number [5.], weight [1. 2.]"
assert found["nd.array([5])"] == found["nd.array([2, 3]).sum()"] == whole and "Unknown type" in found["nd.array(5)"]
PYTHON
