#!/usr/bin/env bash
# mxnet 1.9.1, onnx 1.16.2, onnxruntime 1.19.2
# Guess: mx.onnx.export_model converts every attribute of an operator that it supports, or refuses the operator.
# What happened: it reads the attributes that it knows and drops others without a message. BatchNorm with fix_gamma, the
# default of mx.sym.BatchNorm, is scaled by the gamma of the file, which MXNet takes as 1 (files of insightface hold
# others); BilinearResize2D aligns corners with align_corners=False, too; sum with exclude=True, which ends each loss of
# Gluon, sums over the other axes; L2Normalization has no eps. fix_gamma alone was noticed before
# (zheshipinyinMc/arcface_retinaface_mxnet2onnx#4). Source: mxnet/onnx/mx2onnx/_op_translations. Exit code 0 as long as
# this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 onnx==1.16.2 onnxruntime==1.19.2 "setuptools<81"
cd "$folder"
MXNET_SUBGRAPH_VERBOSE=0 venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
import numpy as np
import onnxruntime

onnxruntime.set_default_logger_severity(3)
x = mx.sym.var("data")
image = np.random.RandomState(0).rand(2, 3, 4, 4).astype("float32")
arrays = {"norm_gamma": [2, 3, 4], "norm_beta": [0, 1, 2], "norm_moving_mean": [0, 0, 1], "norm_moving_var": [1, 4, 1]}
symbols = {
    "BatchNorm(fix_gamma=True)": mx.sym.BatchNorm(x, fix_gamma=True, name="norm"),
    "BatchNorm(fix_gamma=False)": mx.sym.BatchNorm(x, fix_gamma=False, name="norm"),
    "BilinearResize2D(align_corners=False)": mx.sym.contrib.BilinearResize2D(x, height=7, width=7, align_corners=False),
    "BilinearResize2D(align_corners=True)": mx.sym.contrib.BilinearResize2D(x, height=7, width=7, align_corners=True),
    "sum(axis=0, exclude=True)": mx.sym.sum(x, axis=0, exclude=True, keepdims=True),
    "sum(axis=(1, 2, 3))": mx.sym.sum(x, axis=(1, 2, 3), keepdims=True),
    "L2Normalization(eps=1)": mx.sym.L2Normalization(x, mode="channel", eps=1),
    "L2Normalization()": mx.sym.L2Normalization(x, mode="channel"),
}
print(f"mxnet {mx.__version__}: largest difference between MXNet and the exported file in onnxruntime")
found = {}
for name, symbol in symbols.items():
    inputs = {key: mx.nd.array(array) for key, array in arrays.items() if key in symbol.list_inputs()}
    mx.onnx.export_model(symbol, inputs, [image.shape], np.float32, "x.onnx")
    exported = onnxruntime.InferenceSession("x.onnx").run(None, {"data": image})[0]
    states = {key: inputs.pop(key) for key in symbol.list_auxiliary_states()}
    expected = symbol.bind(mx.cpu(), {"data": mx.nd.array(image), **inputs}, aux_states=states).forward()[0].asnumpy()
    same_shape = expected.shape == exported.shape
    found[name] = float(np.abs(expected - exported).max()) if same_shape else np.inf
    print(f"  {name:38} {found[name]:.2g}" + ("" if same_shape else f" (shapes {expected.shape}, {exported.shape})"))
differences = list(found.values())
assert min(differences[0::2]) > 0.1 and max(differences[1::2]) < 1e-5
PYTHON
