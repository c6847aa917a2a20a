"""EfficientNet, MobileNetV1 and MobileNetV3 of torchvision and timm, which no network of Gluon or GluonCV computes.

Gluon and GluonCV have no EfficientNet. timm's MobileNetV1 has ReLU6 where Gluon's has ReLU. The MobileNetV3 of both
libraries has a bias in its last hidden layer, which GluonCV's has not; torchvision's epsilon is 1e-3, GluonCV's 1e-5;
the small one has 1024 units there, GluonCV's 1280.

Sources: torchvision 0.29.1, models/mobilenetv3.py and efficientnet.py; timm 1.0.31, models/mobilenetv3.py and
efficientnet.py; gluoncv 0.10.5, model_zoo/mobilenetv3.py; mxnet 1.9.1, gluon/model_zoo/vision/mobilenet.py.
"""

from __future__ import annotations

import re

from mxtrain.model.foreign.table import Family

SQUEEZE = r"blocks\.\d\.\d+\.se\.conv_reduce\.weight|features\.\d+\.(\d+\.)?block\.\d\.fc1\.weight"
"""Layers for the weights of channels, which MobileNetV1 and V2 lack."""
LAST_OF_V1 = r"blocks\.4\.1\.conv_pw\.weight"
LINEAR_OF_V2 = "blocks.1.0.conv_pwl.weight"

FAMILY = Family(
    name="EfficientNet, MobileNetV1 or MobileNetV3 of torchvision and timm",
    mark=f"{SQUEEZE}|{LAST_OF_V1}",
    tables=(),
    reason="Gluon and GluonCV have no EfficientNet, their MobileNetV1 computes ReLU instead of ReLU6, and their "
    "MobileNetV3 has no bias in its last hidden layer. Export the network of PyTorch to ONNX with its weights, and "
    "type model=onnx model.file=FILE.onnx.",
    looks_like=lambda arrays: LINEAR_OF_V2 not in arrays or any(re.fullmatch(SQUEEZE, name) for name in arrays),
)
