"""Runs of several processes on one or many machines: launching, heartbeats, supervision and restarts."""

from typing import TYPE_CHECKING

from mxtrain.config.moved import moved_names

if not TYPE_CHECKING:  # else mypy would accept any name
    __getattr__ = moved_names(__name__)
