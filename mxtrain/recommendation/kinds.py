"""Kinds of samples and targets of recommendation."""

from __future__ import annotations

from typing import ClassVar

from mxtrain.types.kinds import TableFeatures, TargetKind


class UserHistories(TableFeatures):
    """A user with the items of the user's history, an item, and features of both."""

    name: ClassVar[str] = "interactions"


class NextItem(TargetKind):
    """The item that follows the items of a user so far. Networks score all items, (B, I)."""
