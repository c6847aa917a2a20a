#!/usr/bin/env bash
# onnx2torch 1.5.15, onnx 1.23.2, torch 2.14.1
# Guess: every float array of an ONNX file becomes a parameter of the converted network, and one that two layers share
# stays one parameter.
# What happened: weights of Conv, Gemm and the norms are parameters. Slopes of PRelu, the arrays of Mul and Add (layer
# scale, or a bias behind MatMul), and weights of MatMul are buffers: fine-tuning leaves them as they are, without a
# message, while the outputs are right. A weight that two Gemm share becomes two parameters, which differ after the
# first step. Source: onnx2torch/converter.py, which registers an initializer that a module does not take as a buffer.
# Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx2torch==1.5.15 onnx==1.23.2 torch==2.14.1 numpy==1.26.4 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import numpy as np
import onnx
import onnx2torch
import torch
from onnx import TensorProto, helper, numpy_helper

draw = np.random.RandomState(0)
shapes = {"shared": (4, 4), "slope": (1,), "scale": (4,), "product": (4, 4), "offset": (4,), "b1": (4,), "b2": (4,)}
arrays = {name: draw.rand(*shape).astype("float32") for name, shape in shapes.items()}
nodes = [
    ("Gemm", ["x", "shared", "b1"], {"transB": 1}),
    ("PRelu", ["y0", "slope"], {}),
    ("Mul", ["y1", "scale"], {}),
    ("MatMul", ["y2", "product"], {}),
    ("Add", ["y3", "offset"], {}),
    ("Gemm", ["y4", "shared", "b2"], {"transB": 1}),
]
graph = helper.make_graph(
    [helper.make_node(op, inputs, [f"y{number}"], **more) for number, (op, inputs, more) in enumerate(nodes)],
    "graph",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
    [helper.make_tensor_value_info("y5", TensorProto.FLOAT, [3, 4])],
    [numpy_helper.from_array(array, name) for name, array in arrays.items()],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
onnx.checker.check_model(model)
network = onnx2torch.convert(model)


def count(tensors):
    """Returns how many tensors hold each array of the file."""
    values = [tensor.detach().numpy() for tensor in tensors]
    found = {name: sum(np.array_equal(value, array) for value in values) for name, array in arrays.items()}
    return {name: number for name, number in found.items() if number}


parameters, buffers = count(network.parameters()), count(network.buffers())
print(f"parameters, and in how many an array is: {parameters}")
print(f"buffers: {', '.join(buffers)}")
first, second = (parameter for parameter in network.parameters() if parameter.shape == (4, 4))
optimizer = torch.optim.SGD(network.parameters(), 0.01)
network(torch.ones(3, 4)).square().sum().backward()
optimizer.step()
difference = float((first - second).abs().max())
print(f"difference between the two copies of the shared weight after a step: {difference:.2g}")
assert parameters == {"shared": 2, "b1": 1, "b2": 1} and set(buffers) == {"slope", "scale", "product", "offset"}
assert difference > 0.01
PYTHON
