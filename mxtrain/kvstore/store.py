"""Interface of the gradient stores: sums over replicas and workers, and other collective operations."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.cluster.stopping import disconnect
from mxtrain.errors import PeersLost
from mxtrain.kvstore.membership import FIXED, Membership
from mxtrain.kvstore.synchronization import IN_EVERY_STEP, Synchronization
from mxtrain.kvstore.times import WorkerTimes
from mxtrain.kvstore.world import ALONE, World

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.kvstore.chunk_client import ChunkClient
    from mxtrain.kvstore.reduction import Reduction
    from mxtrain.kvstore.remote_updater import RemoteUpdater
    from mxtrain.kvstore.table_client import TableClient
    from mxtrain.types import Stateful
    from mxtrain.types.annotations import Config

Numbers = Union[Sequence[float], np.ndarray]


class Store:
    """Sums over replicas and workers. This base class is the store of a single worker.

    Methods are collective: all workers must make the same calls in the same order.
    """

    world: World = ALONE
    membership: Membership = FIXED
    """Forms a new `world` when workers are lost or join."""
    servers_update: bool = False
    """True if the optimizer runs on servers, which apply each worker's gradient by itself."""
    independent_steps: bool = False
    """True if a step of a worker uses its own gradient only, so that the workers' weights differ until they
    synchronise."""
    times: Optional[WorkerTimes] = None
    """Times of all workers in the last timed step; None with a single worker."""
    divides_data: bool = False
    """True if workers take chunks of the data from a server (`cluster.balance=dynamic`), if there are several."""
    chunks: Optional[ChunkClient] = None
    """Connection to this server; None if each worker has its share of every batch."""
    balance_every: Optional[int] = None
    """Steps between changes of the workers' shares, see `cluster.balance_every`; None: at the beginning of epochs."""

    def build_updater(
        self,
        settings: Config,
        weights: Mapping[str, NDArray],
        multipliers: Mapping[str, Tuple[float, float]],
        steps_per_epoch: int,
    ) -> RemoteUpdater:
        """Builds the replacement of `mxtrain.optimizer.updater.Updater` if servers update. Waits for all workers.

        Args:
            settings: `optimizer` and `kvstore` of the description, as plain values.
            weights: structural name -> NDArray.
            multipliers: structural name -> (lr_mult, wd_mult).
            steps_per_epoch: steps of an epoch on each worker.
        """
        raise NotImplementedError(f"{type(self).__name__} does not update.")

    def build_synchronization(
        self,
        values: Mapping[str, NDArray],
        reductions: Sequence[Reduction],
        statistics: Sequence[str],
        optimizer: Stateful,
        publish: Callable[[], None],
    ) -> Synchronization:
        """Builds what makes the workers' weights equal again if they take independent steps without servers.

        Args:
            values: structural name -> canonical array.
            reductions: the gradients of a step; their arrays are free for other use after each update.
            statistics: structural names of the batch-norm statistics.
            optimizer: optimizer of this worker.
            publish: called after `values` were written to.
        """
        return IN_EVERY_STEP

    def connect_tables(self) -> TableClient:
        """Returns the client of the servers that hold embedding tables, the same one in each call."""
        raise NotImplementedError(f"{type(self).__name__} has no servers that hold tables.")

    def share_pace(self, step: int) -> Optional[WorkerTimes]:
        """Returns the time of all workers for their samples since the last call, if no step of the store measures it,
        or None. Collective; waits."""
        return None

    def begin_chunk(self, chunk: int) -> None:
        """Prepares the store for a step with a chunk that was taken from `chunks`."""

    def finish_interval(self) -> Optional[int]:
        """Waits until all workers have finished an interval of `chunks`; see `ChunkClient.finish`. Updates `world`."""
        return None

    def begin_step(self, step: int, size: int) -> None:
        """Prepares the store for a step. Called before each step.

        Args:
            step: number of the step.
            size: number of samples of this worker in the step.
        """

    def reduce(self, reductions: Sequence[Reduction]) -> None:
        """Sums each parameter's gradients over replicas and workers into its owner's, in place. Asynchronous.

        Args:
            reductions: the same ones in every step.
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

    def votes_later(self, votes: Sequence[float], lag: int) -> Callable[[], np.ndarray]:
        """Starts a sum of the votes of all workers after their last step, for example to stop.

        The returned function waits for the result and returns it. All workers get the same result for the same step if
        they call it `lag` steps later: that is how workers agree on a step with `dist_async`, where they do not wait
        for each other.

        Args:
            votes: 0 or 1 for each question.
            lag: number of steps.
        """
        result = self.total(votes)
        return lambda: result

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
        assert blob is not None
        return blob


def within_step(store: Store) -> Store:
    """Returns the store that sums in each step: this one, or that of a single worker if steps are independent."""
    return Store() if store.independent_steps else store
