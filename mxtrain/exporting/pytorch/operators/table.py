"""The table of converters to PyTorch."""

from __future__ import annotations

from typing import Callable, Dict

from mxtrain.exporting.pytorch.call import Converted, TorchCall
from mxtrain.model.graph.converter_table import entering

Converter = Callable[[TorchCall], Converted]

CONVERTERS: Dict[str, Converter] = {}
"""MXNet's name of an operator -> the function that returns its layer or expressions."""
converts = entering(CONVERTERS)
"""Decorator that enters a function under the operators that it converts."""
