"""Validations of several workers."""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest

from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import World
from mxtrain.training.validation import values_of_first


class Told(Store):
    """A worker that hears the values of rank 0."""

    def __init__(self, rank: int, size: int, independent: bool) -> None:
        self.world, self.independent_steps, self.said = World(rank, size), independent, []

    def broadcast(self, blob: Optional[bytes]) -> bytes:
        self.said.append(blob)
        return b'{"val/loss": 1.0}'


@pytest.mark.parametrize("rank, said", [(0, b'{"val/loss": 2.0}'), (1, None)])
def test_values_equal_rank_0_if_steps_are_independent(rank: int, said: Any) -> None:
    store = Told(rank, 2, independent=True)
    assert values_of_first({"val/loss": 2.0}, store) == json.loads('{"val/loss": 1.0}') and store.said == [said]


@pytest.mark.parametrize("size, updates", [(1, True), (2, False)])
def test_equal_values_are_not_sent(size: int, updates: bool) -> None:
    store = Told(0, size, updates)
    assert values_of_first({"val/loss": 2.0}, store) == {"val/loss": 2.0} and store.said == []
