"""Integers with names, which MXNet's operators accept."""

from __future__ import annotations

import enum


class NamedInt(enum.IntEnum):
    """Base class of named integers, such as columns of an array.

    `str` of a member is its number. Before Python 3.11, `str` of an `enum.IntEnum` is its name, which MXNet's operators
    reject, because MXNet passes their parameters as strings.
    """

    __str__ = int.__repr__


class NamedFlags(enum.IntFlag):
    """Base class of flags that can be combined; see `NamedInt`."""

    __str__ = int.__repr__
