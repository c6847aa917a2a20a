"""The table of converters."""

from __future__ import annotations

from typing import Callable, Dict

from mxtrain.exporting.graph import Converted, OperatorCall

Converter = Callable[[OperatorCall], Converted]

CONVERTERS: Dict[str, Converter] = {}
"""MXNet's name of an operator -> the function that adds its nodes and returns the names of its outputs."""


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Enters a function into the table.

    Args:
        names: of the operators that it converts.
    """

    def enter(converter: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(names, converter))
        return converter

    return enter
