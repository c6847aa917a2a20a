"""Mixed precision: the floating-point types of a network's operators."""

from typing import TYPE_CHECKING

from mxtrain.config.moved import moved_names

if not TYPE_CHECKING:  # else mypy would accept any name
    __getattr__ = moved_names(__name__)
