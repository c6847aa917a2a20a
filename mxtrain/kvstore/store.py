"""Interface of the gradient stores: sums over replicas and workers, and other collective operations."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.cluster.stopping import disconnect
from mxtrain.errors import PeersLost
from mxtrain.kvstore.times import WorkerTimes
from mxtrain.kvstore.world import ALONE, World

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.kvstore.remote_updater import RemoteUpdater
    from mxtrain.kvstore.table_client import TableClient
    from mxtrain.types.annotations import Config

Numbers = Union[Sequence[float], np.ndarray]
NUMBERS_PER_MESSAGE = 1 << 20
"""Length of the arrays in which `broadcast` sends a blob."""


@dataclass(frozen=True)
class Reduction:
    """The gradients of one parameter that must be summed.

    Attributes:
        name: structural name.
        replicas: one gradient per replica, each on its device.
        owner: index of the replica that updates the parameter; the sum is written to its gradient.
    """

    name: str
    replicas: Sequence[NDArray]
    owner: int


class Store:
    """Sums over replicas and workers. This base class is the store of a single worker.

    Methods are collective, except for `drain`, `wants_regroup`, `scalars` and `summary`: all workers must make the same
    calls in the same order.
    """

    world: World = ALONE
    updates: bool = False
    """True if the optimizer runs on servers, which apply each worker's gradient by itself."""

    def within_step(self) -> Store:
        """Returns the store that sums in each step: this one, or a store of a single worker if servers update."""
        return self

    def build_updater(
        self,
        settings: Config,
        weights: Mapping[str, NDArray],
        multipliers: Mapping[str, Tuple[float, float]],
        steps_per_epoch: int,
    ) -> RemoteUpdater:
        """Builds the replacement of `mxtrain.optimizer.updater.Updater` if servers update. Collective.

        Args:
            settings: `optimizer` and `kvstore` of the description, as plain values.
            weights: structural name -> NDArray.
            multipliers: structural name -> (lr_mult, wd_mult).
            steps_per_epoch: steps of an epoch on each worker.
        """
        raise NotImplementedError(f"{type(self).__name__} does not update.")

    def connect_tables(self) -> TableClient:
        """Returns the client of the servers that hold embedding tables, the same one in each call. Collective."""
        raise NotImplementedError(f"{type(self).__name__} has no servers that hold tables.")

    times: Optional[WorkerTimes] = None
    """Times of all workers in the last timed step; None with a single worker."""

    joined_late: bool = False
    """True if this worker joined while the others were training."""

    def begin_step(self, step: int, size: int) -> None:
        """Prepares the store for a step. Called before each step.

        Args:
            step: number of the step.
            size: number of samples of this worker in the step.
        """

    def reduce(self, reductions: Sequence[Reduction]) -> None:
        """Sums each parameter's gradients over replicas and workers into its owner's, in place. Asynchronous.

        Args:
            reductions: `mxtrain.parallel.base.Reduction`s, the same ones in every step.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how gradients are summed.")

    def all_reduce(self, arrays: Sequence[NDArray]) -> None:
        """Sums arrays over workers, in place. Asynchronous."""

    def gather(self, flat: NDArray) -> NDArray:
        """Returns the flat arrays of all workers, (W, N), in the order of their ranks and bitwise equal. Asynchronous.

        Args:
            flat: array (N,), float32 or float64, on any device.
        """
        return flat.reshape((1, -1))

    def total(self, values: Numbers) -> np.ndarray:
        """Returns the sums of some numbers over workers, in float64. Waits for all workers."""
        return np.asarray(values, np.float64)

    def total_later(self, values: Numbers) -> Callable[[], np.ndarray]:
        """Starts a sum of integers over workers. The returned function waits for the result and returns it."""
        result = self.total(values)
        return lambda: result

    def votes_later(self, votes: Sequence[float], lag: int) -> Callable[[], np.ndarray]:
        """Starts a sum, as `total_later`, of the votes of this worker after its last step, for example to stop.

        All workers get the same result for the same step if they call the returned function `lag` steps later. With
        `dist_async`, where workers do not wait for each other, that is how they agree on a step.
        """
        return self.total_later(votes)

    def average(self, arrays: Sequence[NDArray]) -> None:
        """Averages arrays that each worker has on its own (batch-norm statistics, EMA weights) in place. Does nothing
        in synchronous stores, in which they are equal."""

    def agree(self, values: Dict[str, float]) -> Dict[str, float]:
        """Returns the values of rank 0 on all workers. Does nothing in synchronous stores, in which they are equal."""
        return values

    def scalars(self) -> Dict[str, float]:
        """Returns values for loggers since the last call, by TensorBoard tag."""
        return {}

    def summary(self) -> Dict[str, float]:
        """Returns the values of `scalars` over the lifetime of this process."""
        return {}

    def confirm(self, arrays: Sequence[NDArray]) -> None:
        """Checks the results of `reduce` and `all_reduce` before they are used. Elastic stores wait for them.

        Raises:
            PeersLost: another worker was lost, and the others can continue without it.
        """

    def drain(self) -> None:
        """Waits, after `PeersLost`, until no operation is pending.

        Until then MXNet does not write to arrays that are outputs of a failed sum.
        """

    def resume_from(self, step: int) -> None:
        """Restores the state of the store. Called after `regroup`, when all workers have the state of step `step`."""

    @property
    def elastic(self) -> bool:
        """Returns True if workers may join and leave during the run."""
        return False

    def wants_regroup(self) -> bool:
        """Returns True on rank 0 if a worker waits to join."""
        return False

    def regroup(self) -> None:
        """Forms a new `world` of the remaining and waiting workers. Called after `PeersLost` or `wants_regroup`."""
        raise NotImplementedError(f"{type(self).__name__} cannot lose a worker.")

    def residuals(self, reductions: Sequence[Reduction]) -> Dict[str, np.ndarray]:
        """Returns the compression residuals of all workers, on rank 0. Waits for all workers.

        Returns:
            `<parameter>:<rank>` -> host copy, in the parameter's shape; `<parameter>:<name>` of further state. Empty
            without compression, and incomplete on other workers than rank 0.
        """
        return {}

    def restore_residuals(self, reductions: Sequence[Reduction], arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the result of `residuals`, also for another number of workers. Does nothing for an empty mapping.

        Raises:
            CheckpointError: the residuals belong to other parameters.
        """

    def close(self) -> None:
        """Disconnects from the other workers after all of them have called it. Only for a run that ended well."""
        with suppress(PeersLost):  # the run is over and saved
            self.total([0.0])  # a barrier: no worker leaves while another one still needs it
        disconnect(self._disconnect)

    def _disconnect(self) -> None:
        """Closes the connection to the other workers."""

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        """Returns the rows of all workers, (N, width) float64, in the order of their ranks. Waits for all workers.

        Args:
            rows: rows of this worker; their number may differ between workers.
        """
        if self.world.size == 1:
            return rows
        counts_here = [len(rows) if rank == self.world.rank else 0 for rank in range(self.world.size)]
        counts = self.total(counts_here).astype(int)
        gathered = np.zeros((counts.sum(), rows.shape[1]))
        begin = counts[: self.world.rank].sum()
        gathered[begin : begin + len(rows)] = rows
        # Each number is summed with zeros, so it is unchanged.
        return self.total(gathered.ravel()).reshape(gathered.shape) if len(gathered) else gathered

    def broadcast(self, blob: Optional[bytes]) -> bytes:
        """Returns the bytes of rank 0 on all workers; the others pass None. Waits for all workers."""
        if self.world.size == 1:
            assert blob is not None
            return blob
        (size,) = self.total([len(blob or b"")]).astype(int)
        padded = (blob or b"") + b"\0" * (size % 2 if self.world.rank == 0 else 0)
        # Two bytes per number, which float32 represents exactly; the other workers add 0.
        numbers = np.frombuffer(padded, "<u2") if self.world.rank == 0 else np.zeros((size + 1) // 2)
        pieces: List[bytes] = []
        for begin in range(0, len(numbers), NUMBERS_PER_MESSAGE):
            piece = np.zeros(NUMBERS_PER_MESSAGE)
            part = numbers[begin : begin + NUMBERS_PER_MESSAGE]
            piece[: len(part)] = part
            pieces.append(self.total_later(piece)()[: len(part)].astype("<u2").tobytes())
        return b"".join(pieces)[:size]
