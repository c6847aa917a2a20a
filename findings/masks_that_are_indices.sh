#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: x[mask] with a boolean NumPy array takes the elements where it is true, as indexing of mx.nd takes the other
# kinds of NumPy indices.
# What happened: the mask is read as the indices 0 and 1: (10, 11, 12, 13)[F, T, T, F] is (10, 11, 11, 10) instead of
# (11, 12), of the length of the mask, without a message. nd.contrib.boolean_mask does the right thing. Exit code 0 as
# long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
import numpy as np
from mxnet import nd

data, mask = np.arange(10, 14, dtype=np.float32), np.array([False, True, True, False])
found = {
    "numpy": data[mask], "nd, NumPy mask": nd.array(data)[mask].asnumpy(), "nd, mask of nd": nd.array(data)[nd.array(data) > 99].asnumpy(),
    "nd.contrib.boolean_mask": nd.contrib.boolean_mask(nd.array(data), nd.array(mask)).asnumpy(),
}
print(f"mxnet {mx.__version__}, numpy {np.__version__}: elements 1 and 2 of {data} by a mask (third line: no element)")
for name, value in found.items():
    print(f"  {name:24} {value}")
assert [value.tolist() for value in found.values()] == [[11, 12], [10, 11, 11, 10], [10, 10, 10, 10], [11, 12]]
PYTHON
