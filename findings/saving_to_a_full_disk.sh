#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: nd.save raises an error if the disk is full, as open(...).write and numpy.save do, whatever the size.
# What happened: an array of 4 MB raises; one of 4 kB is saved without an error, and nothing is written: what is in the
# buffer when the file is closed is lost without a word. Block.save_parameters calls it. /dev/full stands for the disk:
# each write to it fails with "No space left on device". Exit code 0 as long as this is so.
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


def outcome(save):
    """Returns the error of saving, or "no error"."""
    try:
        save()
    except (OSError, mx.MXNetError) as error:
        return type(error).__name__
    return "no error"


found = {}
for size in (1000, 1000000):
    array = np.ones(size, np.float32)
    found[size] = (
        outcome(lambda: nd.save("/dev/full", {"weight": nd.array(array)})),
        outcome(lambda: np.save(open("/dev/full", "wb", buffering=0), array)),
    )
print(f"mxnet {mx.__version__}: saving to a full device, by nd.save and numpy.save")
for size, outcomes in found.items():
    print(f"  {4 * size:8} bytes: {outcomes}")
assert found == {1000: ("no error", "OSError"), 1000000: ("MXNetError", "OSError")}
PYTHON
