"""The table of converters to PyTorch."""

from __future__ import annotations

from typing import Callable, Dict

from mxtrain.exporting.pytorch.call import Converted, TorchCall

Converter = Callable[[TorchCall], Converted]

CONVERTERS: Dict[str, Converter] = {}
"""MXNet's name of an operator -> the function that returns its layer or expressions."""


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Enters a function into the table.

    Args:
        names: of the operators that it converts.
    """

    def enter(converter: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(names, converter))
        return converter

    return enter
