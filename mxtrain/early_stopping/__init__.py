"""Early stopping: ends a run when the monitored value no longer gets better."""

from typing import TYPE_CHECKING

from mxtrain.config.moved import moved_names

if not TYPE_CHECKING:  # else mypy would accept any name
    __getattr__ = moved_names(__name__)
