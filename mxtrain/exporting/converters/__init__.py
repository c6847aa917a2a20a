"""Converters of MXNet's operators to ONNX, by name: one table, in files by kind."""

from mxtrain.exporting.converters import attention, elementwise, layers, pooling, regions, sequences, shapes
from mxtrain.exporting.converters.table import CONVERTERS as CONVERTERS

__all__ = ["CONVERTERS", "attention", "elementwise", "layers", "pooling", "regions", "sequences", "shapes"]
