#!/usr/bin/env bash
# tensorboardX 2.6.5
# Guess: the tag of a curve is kept as it is, or at least two tags give two curves.
# What happened: each character outside letters, digits, "_", "-", "." and "/" becomes "_" and a leading "/" is dropped,
# with no record of the old name, so "error < 1" and "error > 1" are written as one curve with two values at each step.
# (The word characters of other alphabets stay.) A value beyond float32, such as 1e300, is written as infinity.
# Source: tensorboardX/summary.py, _clean_tag. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorboardX==2.6.5 numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import glob
import struct

import tensorboardX
from tensorboardX.proto import event_pb2

tags = ["error < 1", "error > 1", "acc@5", "acc_5", "/loss", "loss", "精度", "large"]
with tensorboardX.SummaryWriter("logs") as writer:
    for value, tag in enumerate(tags):
        writer.add_scalar(tag, 1e300 if tag == "large" else value, 0)
with open(glob.glob("logs/*tfevents*")[0], "rb") as file:
    content = file.read()
found, position = [], 0
while position < len(content):
    (length,) = struct.unpack_from("<Q", content, position)
    event = event_pb2.Event.FromString(content[position + 12 : position + 12 + length])
    found += [(value.tag, value.simple_value) for value in event.summary.value]
    position += length + 16
print(f"tensorboardX {tensorboardX.__version__}: tag, tag and value in the file")
for tag, (written, value) in zip(tags, found):
    print(f"  {tag:10} {written:10} {value}")
names = [name for name, _ in found]
assert names == ["error___1", "error___1", "acc_5", "acc_5", "loss", "loss", "精度", "large"] and found[-1][1] == float(
    "inf"
)
PYTHON
