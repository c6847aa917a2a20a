"""Converters of ONNX's operators to MXNet, by name: one table, in files by kind."""

from mxtrain.model.onnx.operators import constants, elementwise, layers, pooling, resizing, shapes
from mxtrain.model.onnx.operators.table import CONVERTERS as CONVERTERS
from mxtrain.model.onnx.operators.table import FOLDED as FOLDED

__all__ = ["CONVERTERS", "FOLDED", "constants", "elementwise", "layers", "pooling", "resizing", "shapes"]
