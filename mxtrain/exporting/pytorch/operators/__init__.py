"""Converters of MXNet's operators to PyTorch, by name: one table, in files by kind."""

from mxtrain.exporting.pytorch.operators import attention, elementwise, layers, pooling, sequences, shapes
from mxtrain.exporting.pytorch.operators.table import CONVERTERS as CONVERTERS

__all__ = ["CONVERTERS", "attention", "elementwise", "layers", "pooling", "sequences", "shapes"]
