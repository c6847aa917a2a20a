#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: ROIAlign of a region with image -1 (padding) gives zeros for that region and leaves the others alone.
# What happened: the row of that region is not written. Instead element n of the whole output is set to 0 if region n
# has image -1: here element 1, which belongs to the first region. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
from mxnet import nd

features = nd.arange(1, 129).reshape((1, 2, 8, 8))
regions = [[0, 0, 0, 7, 7], [0, 0, 0, 7, 7], [0, 1, 1, 6, 6]]


def first_region(image):
    """Returns the output of the first of three regions; the second one has this image."""
    rows = [list(row) for row in regions]
    rows[1][0] = image
    output = nd.contrib.ROIAlign(features, nd.array(rows), pooled_size=(2, 2), spatial_scale=1.0)
    return [round(float(value), 2) for value in output[0].asnumpy().ravel()]


right, found = first_region(0), first_region(-1)
print(f"mxnet {mx.__version__}: output of region 0\n  {right}\n  {found} if region 1 has image -1")
assert found[1] == 0 and right[1] != 0 and [*found[:1], *found[2:]] == [*right[:1], *right[2:]]
PYTHON
