"""The table of converters."""

from __future__ import annotations

from typing import Callable, Dict

from mxtrain.exporting.graph import Converted, OperatorCall
from mxtrain.model.graph.converter_table import entering

Converter = Callable[[OperatorCall], Converted]

CONVERTERS: Dict[str, Converter] = {}
"""MXNet's name of an operator -> the function that adds its nodes and returns the names of its outputs."""
converts = entering(CONVERTERS)
"""Decorator that enters a function under the operators that it converts."""
