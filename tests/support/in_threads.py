"""Workers of one run in threads of this process: all that joins workers, without processes and a wire."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, ClassVar, List, Sequence

import numpy as np

from mxtrain.kvstore.joined_store import JoinedStore
from mxtrain.kvstore.spec import Summing
from mxtrain.kvstore.world import World

PATIENCE_S = 60


class Rendezvous:
    """Sums numbers of the threads in the order of their ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._given: List[Any] = [None] * size

    def sum(self, rank: int, arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
        self._given[rank] = arrays
        self._barrier.wait(PATIENCE_S)
        # Not np.sum, which adds to 0 and so makes -0.0 of all workers 0.0.
        found = [functools.reduce(np.add, same) for same in zip(*self._given)]
        self._barrier.wait(PATIENCE_S)
        return found

    def run(self, work: Callable[[World], Any]) -> List[Any]:
        """Returns the result of `work` in each worker; raises the error of one of them."""
        found: List[Any] = [None] * self.size
        raised: List[BaseException] = []

        def begin(rank: int) -> None:
            try:
                found[rank] = work(World(rank, self.size))
            except BaseException as error:
                raised.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE_S)
        if raised:
            raise raised[0]
        return found


class ThreadStore(JoinedStore):
    """A worker's connection to the other threads."""

    def __init__(self, world: World, rendezvous: Rendezvous, **options: Any) -> None:
        super().__init__(world, **options)
        self._rendezvous = rendezvous

    def sum_in_place(self, arrays: Sequence[Any]) -> None:
        for array, total in zip(arrays, self._rendezvous.sum(self.world.rank, [array.asnumpy() for array in arrays])):
            array[:] = total


class Threads(Summing):
    """The same for a description: `kvstore._target_=in_threads.Threads`. A test sets the rendezvous."""

    rendezvous: ClassVar[Rendezvous]
    van: ClassVar[str] = "zmq"

    def connect(self, world: World) -> JoinedStore:
        return ThreadStore(world, self.rendezvous, compressor=self.build_compressor())
