#!/usr/bin/env bash
# onnxruntime 1.32.0, onnx 1.23.2
# Guess: the shape that a session declares for a fixed input (get_outputs()[0].shape) is the shape that it returns.
# What happened: MaxPool and AveragePool with ceil_mode=1 and padding, of which the last window lies in the padding
# alone, declare 3 elements and return 2 up to opset 21 (with a warning at each run); from opset 22 on both are 2.
# onnxruntime 1.19.2 is the other way round: it declares 2 and returns 3. Buffers that are allocated by the declared
# shape are of the wrong size. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

onnxruntime.set_default_logger_severity(3)
values = [
    helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4]),
    helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "c", "w"]),
]


def sizes(operator, opset):
    """Returns the declared and the returned number of elements of 4 that are pooled with kernel 2, stride 3 and padding 1."""
    node = helper.make_node(operator, ["x"], ["y"], kernel_shape=[2], strides=[3], pads=[1, 1], ceil_mode=1)
    model = helper.make_model(
        helper.make_graph([node], "pool", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.get_outputs()[0].shape[2], session.run(None, {"x": np.ones((1, 1, 4), np.float32)})[0].shape[2]


print(f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}: elements of the output, declared and returned")
found = {(operator, opset): sizes(operator, opset) for operator in ("MaxPool", "AveragePool") for opset in (13, 19, 22)}
for (operator, opset), pair in found.items():
    print(f"  {operator:11} opset {opset}: {pair}")
assert all(pair == ((2, 2) if opset == 22 else (3, 2)) for (_, opset), pair in found.items())
PYTHON
