#!/usr/bin/env bash
# onnxruntime 1.32.0, onnx 1.23.2
# Guess: quantize_dynamic(per_channel=True) gives a table of embeddings (Gather) one scale for each row, as it gives a
# matrix one for each column.
# What happened: the table has a single scale, with per_channel=True as without. One row that is a hundred times as
# large, such as that of a frequent token, turns two thirds of all other numbers into 0. No warning names it. Exit code
# 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import logging

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

logging.disable(logging.WARNING)
random = np.random.RandomState(0)
table, matrix = random.randn(1000, 64).astype("float32"), random.randn(64, 8).astype("float32")
table[0] *= 100
graph = helper.make_graph(
    [helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("MatMul", ["rows", "matrix"], ["y"])],
    "graph",
    [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
    [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("y", 8), ("rows", 64))],
    [numpy_helper.from_array(table, "table"), numpy_helper.from_array(matrix, "matrix")],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
quantize_dynamic("model.onnx", "small.onnx", per_channel=True, op_types_to_quantize=["Gather", "MatMul"])
shapes = {item.name: tuple(item.dims) for item in onnx.load("small.onnx").graph.initializer}
(rows,) = onnxruntime.InferenceSession("small.onnx").run(["rows"], {"ids": np.arange(1, 1000)})
zeros = float((rows == 0).mean())
print(f"onnxruntime {onnxruntime.__version__}: scales of the matrix {shapes['matrix_scale']}, of the table {shapes['table_scale']}")
print(f"  share of numbers of the other 999 rows that became 0: {zeros:.2f}")
assert shapes["matrix_scale"] == (8,) and shapes["table_scale"] == () and 0.6 < zeros < 0.7
PYTHON
