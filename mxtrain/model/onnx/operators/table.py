"""The tables of converters."""

from __future__ import annotations

from typing import Callable, Dict, List, Union

import numpy as np

from mxtrain.model.graph.converter_table import entering
from mxtrain.model.onnx.builder import Value
from mxtrain.model.onnx.call import OnnxCall

Converter = Callable[[OnnxCall], Union[Value, List[Value]]]
Fold = Callable[[OnnxCall], np.ndarray]

CONVERTERS: Dict[str, Converter] = {}
"""ONNX's name of an operator -> the function that adds its nodes and returns its outputs."""
converts = entering(CONVERTERS)
"""Decorator that enters a function under the operators that it converts."""
FOLDED: Dict[str, Fold] = {}
"""ONNX's name of an operator -> the function that computes it for constants."""
folds = entering(FOLDED)
"""Decorator that enters a function under the operators that it computes for constants."""
