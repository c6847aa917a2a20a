#!/usr/bin/env bash
# onnxruntime 1.32.0, onnx 1.23.2
# Guess: a model with external data that is given as bytes is refused, as nobody knows its folder.
# What happened: the file of weights is looked up in the current working directory. Started in the folder of another
# export with the same names it runs, with the weights of the other model. A path finds the file beside the model from
# everywhere. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import os
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def save(folder, weight):
    """Saves a model that adds a weight to 1000 numbers, with the weights in a file of their own."""
    os.makedirs(folder)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in "xy"]
    weights = numpy_helper.from_array(np.full(1000, weight, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "add", values[:1], values[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save_model(model, f"{folder}/model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)


def run(model):
    """Returns the first number that a model gives for zeros."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return float(session.run(None, {"x": np.zeros(1000, np.float32)})[0][0])


save("one", 1)
save("two", 2)
content, path = pathlib.Path("one/model.onnx").read_bytes(), os.path.abspath("one/model.onnx")
found = {}
for folder in ("one", "../two"):
    os.chdir(folder)
    found[folder] = run(path), run(content)
print(
    f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}: output of model one (right: 1), as a path and as bytes"
)
print(f"  in the folder of model one: {found['one']}\n  in the folder of model two: {found['../two']}")
assert found == {"one": (1, 1), "../two": (1, 2)}
PYTHON
