#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: an int32 array beside a Python float gives a float array, as in NumPy, or an error, as two arrays of different
# types do.
# What happened: the number is truncated to the type of the array first: 7 * 0.5 is 0, and 6 == 6.5 and 7 > 6.5 are both
# true while 6 > 6.5 and 6 >= 6.5 are false and true. clip with a bound of 1.5 lets 1 through; the mean of 1 and 2 is 1.
# The sum of a uint8 array is a uint8: 200 + 100 = 44. Exit code 0 as long as this is so.
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


def both(array_of):
    """Returns the results of the expressions for the arrays that a function makes."""
    six, seven = array_of(6, "int32"), array_of(7, "int32")
    results = {
        "7 * 0.5": seven * 0.5,
        "7 + 0.6": seven + 0.6,
        "6 == 6.5": six == 6.5,
        "6 >= 6.5": six >= 6.5,
        "clip(1, 1.5, 9)": array_of(1, "int32").clip(1.5, 9),
        "mean(1, 2)": array_of((1, 2), "int32").mean(),
        "sum(200, 100)": array_of((200, 100), "uint8").sum(),
    }
    return {
        name: float(value.asnumpy()[0] if isinstance(value, nd.NDArray) else np.ravel(value)[0])
        for name, value in results.items()
    }


found = both(lambda values, dtype: nd.array(np.ravel(values), dtype=dtype))
right = both(lambda values, dtype: np.ravel(values).astype(dtype))
print(f"mxnet {mx.__version__} and numpy {np.__version__}: integer arrays beside numbers")
for name, value in found.items():
    print(f"  {name:18} mxnet {value:<5g} numpy {right[name]:g}")
assert list(found.values()) == [0, 7, 1, 1, 1, 1, 44] and list(right.values()) == [3.5, 7.6, 0, 0, 1.5, 1.5, 300]
PYTHON
