"""Kinds of samples of recommendation."""

from __future__ import annotations

from typing import ClassVar

from mxtrain.types.kinds import TableFeatures


class UserHistories(TableFeatures):
    """A user with the items of the user's history, an item, and features of both."""

    name: ClassVar[str] = "interactions"
