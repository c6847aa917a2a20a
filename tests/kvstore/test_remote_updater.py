"""The updater of a worker whose servers update, over a connection that has no servers."""

from __future__ import annotations

from typing import Any, List

import pytest

from mxtrain.engine.backend import nd
from mxtrain.kvstore.remote_updater import RemoteUpdater
from mxtrain.kvstore.world import World


class Recorded:
    """A connection whose messages are answered with themselves; records the averaged arrays."""

    compressors = None

    def __init__(self, size: int) -> None:
        self.world, self.averaged = World(1, size), []

    def init(self, arrays: List[Any], first: int = 0) -> List[int]:
        return list(range(first, first + len(arrays)))

    def ask(self, keys: List[int], messages: List[Any]) -> None: ...

    def barrier(self) -> None: ...

    def average(self, arrays: List[Any]) -> None:
        self.averaged += arrays


@pytest.mark.parametrize("size, averages", [(1, False), (2, True)])
def test_synchronize_averages_the_arrays_that_each_worker_has_on_its_own(size: int, averages: bool) -> None:
    connection, own = Recorded(size), nd.zeros((2,))
    settings: Any = {"optimizer": {}, "kvstore": {}}
    updater = RemoteUpdater(connection, settings, {"weight": nd.ones((3,))}, {"weight": (1.0, 1.0)}, 1)
    assert updater.synchronize([own]) == averages
    assert [array is own for array in connection.averaged] == [True] * averages
