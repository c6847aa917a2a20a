"""Gradient stores, which exchange gradients and parameters between devices, processes and machines."""

from typing import TYPE_CHECKING

from mxtrain.config.moved import moved_names

if not TYPE_CHECKING:  # else mypy would accept any name
    __getattr__ = moved_names(__name__)
