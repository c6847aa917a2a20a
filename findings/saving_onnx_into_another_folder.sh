#!/usr/bin/env bash
# onnx 1.23.2
# Guess: saving a model over itself with save_as_external_data either replaces the file of weights or is refused.
# What happened: it is refused (FileExistsError) only if a file of that name lies in the current working directory, with
# or without a model there. In the folder of the model, if it is another one, the old file is not noticed: the new
# weights are appended to it, so it doubles and triples at each save. Source: onnx/external_data_helper.py,
# convert_model_to_external_data (which looks for `location` itself) and save_external_data (which seeks to the end).
# Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(folder, weight):
    """Returns the size of the weights after saving a model with 4000 bytes of them, or the name of the error."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in "xy"]
    weights = numpy_helper.from_array(np.full(1000, weight, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "add", values[:1], values[1:], [weights])
    path = os.path.join(folder, "model.onnx")
    try:
        onnx.save_model(
            helper.make_model(graph), path, save_as_external_data=True, location="weights.bin", size_threshold=0
        )
    except FileExistsError as error:
        return f"{type(error).__name__}: {error}"
    assert numpy_helper.to_array(onnx.load(path).graph.initializer[0])[0] == weight
    return os.path.getsize(os.path.join(folder, "weights.bin"))


os.mkdir("other")
other, here = [save("other", weight) for weight in (1, 2, 3)], [save("", weight) for weight in (1, 2)]
new = os.path.join("other", "new")
os.mkdir(new)
third = save(new, 1)
print(f"onnx {onnx.__version__}: size of weights.bin, or the error, of each save of 4000 bytes")
print(f"  into another folder, three times: {other}")
print(f"  into the working folder, twice: {here}")
print(f"  into an empty folder, with weights.bin in the working folder: {third}")
assert other[1] >= 2 * 4000 and other[2] >= 3 * 4000 and "FileExistsError" in here[1] and "FileExistsError" in third
PYTHON
