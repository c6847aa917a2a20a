#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: Pooling with pooling_convention="full" gives no window that lies in the padding alone (PyTorch leaves such a
# window out), or gives 0 for it.
# What happened: with padding 1, kernel 2 and stride 3 the last window of 5 elements holds none of them. Max pooling
# gives -3.4e38 there; mean pooling without the padding (count_include_pad=False) gives 0 in 1D and 2D and NaN in 3D,
# and 0 in 3D for 4 elements.
# Source: the sizes are those of src/operator/nn/pooling.cc (ceil without a limit). Exit code 0 as long as this is so.
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


def last(dimensions, size, pool_type):
    """Returns the last value of ones that are pooled."""
    window = {"kernel": (2,) * dimensions, "stride": (3,) * dimensions, "pad": (1,) * dimensions}
    y = nd.Pooling(
        nd.ones((1, 1) + (size,) * dimensions),
        pool_type=pool_type,
        pooling_convention="full",
        count_include_pad=False,
        **window,
    )
    assert y.shape == (1, 1) + (3,) * dimensions
    return float(y.reshape(-1)[-1].asscalar())


print(f"mxnet {mx.__version__}: last value of ones, pooled with kernel 2, stride 3, padding 1, convention full")
found = {}
for dimensions in (1, 2, 3):
    for size in (4, 5):
        found[dimensions, size] = last(dimensions, size, "max"), last(dimensions, size, "avg")
        print(
            f"  {dimensions}D, {size} elements: max {found[dimensions, size][0]:.3g}, mean {found[dimensions, size][1]}"
        )
assert all(maximum < -3e38 for maximum, _ in found.values())
assert [mean for _, mean in found.values()][:5] == [0] * 5 and np.isnan(found[3, 5][1])
PYTHON
