"""The tables of converters."""

from __future__ import annotations

from typing import Callable, Dict, List, Union

import numpy as np

from mxtrain.model.onnx.builder import Value
from mxtrain.model.onnx.call import OnnxCall

Converter = Callable[[OnnxCall], Union[Value, List[Value]]]
Fold = Callable[[OnnxCall], np.ndarray]

CONVERTERS: Dict[str, Converter] = {}
"""ONNX's name of an operator -> the function that adds its nodes and returns its outputs."""
FOLDED: Dict[str, Fold] = {}
"""ONNX's name of an operator -> the function that computes it for constants."""


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Enters a function into the table of converters.

    Args:
        names: of the operators that it converts.
    """

    def enter(converter: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(names, converter))
        return converter

    return enter


def folds(*names: str) -> Callable[[Fold], Fold]:
    """Enters a function into the table of operators that are computed for constants."""

    def enter(fold: Fold) -> Fold:
        FOLDED.update(dict.fromkeys(names, fold))
        return fold

    return enter
