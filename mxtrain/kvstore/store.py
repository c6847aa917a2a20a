"""The gradient store: sums gradients over replicas and workers, and joins what workers know."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.errors import PeersLost
from mxtrain.kvstore.times import WorkerTimes
from mxtrain.kvstore.world import ALONE, World
from mxtrain.process.stopping import disconnect

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Config
    from mxtrain.kvstore.remote_updater import RemoteUpdater
    from mxtrain.kvstore.table_client import TableClient

Numbers = Union[Sequence[float], np.ndarray]
PIECE = 1 << 20
"""Numbers that `broadcast` sends at once."""


@dataclass(frozen=True)
class Reduction:
    """The gradients of one parameter that must be summed.

    Attributes:
        name: structural name.
        replicas: one gradient per replica, each on its device.
        owner: the replica that updates the parameter: its gradient becomes the sum of all.
    """

    name: str
    replicas: Sequence[NDArray]
    owner: int


class Store:
    """Sums over replicas and workers. This base class is a single worker without peers.

    Its methods are collective: all workers must make the same calls in the same order. Not so `drain`, `wants_regroup`,
    `scalars` and `summary`.
    """

    world: World = ALONE
    updates: bool = False
    """True if the optimizer runs on servers, which apply each worker's gradient by itself."""

    def within_step(self) -> Store:
        """The store that sums in each step: this one, or one of a single worker where servers update."""
        return self

    def build_updater(
        self, settings: Config, weights: Mapping[str, NDArray], multipliers: Mapping[str, Tuple[float, float]],
        steps_per_epoch: int,
    ) -> RemoteUpdater:  # fmt: skip
        """Builds the replacement of `mxtrain.optimizer.updater.Updater` if servers update. Collective.

        Args:
            settings: `optimizer` and `kvstore` of the description, as plain values.
            weights: structural name -> NDArray.
            multipliers: structural name -> (lr_mult, wd_mult).
            steps_per_epoch: of each worker.
        """
        raise NotImplementedError(f"{type(self).__name__} does not update.")

    def connect_tables(self) -> TableClient:
        """The way to servers that hold rows of tables; the same one in each call. Collective."""
        raise NotImplementedError(f"{type(self).__name__} has no servers that hold tables.")

    times: Optional[WorkerTimes] = None
    """The times of the last step that was timed, where there are several workers."""

    came_late: bool = False
    """True if this worker has come while the others were training."""

    def begin_step(self, step: int, size: int) -> None:
        """Called before step number `step` is computed, of which this worker has `size` samples."""

    def reduce(self, reductions: Sequence[Reduction]) -> None:
        """Sums each parameter's gradients over replicas and workers into its owner's, in place. Asynchronous.

        Args:
            reductions: `mxtrain.parallel.base.Reduction`s, the same ones in every step.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how gradients are summed.")

    def all_reduce(self, arrays: Sequence[NDArray]) -> None:
        """Sums arrays over workers, in place. Asynchronous."""

    def gather(self, flat: NDArray) -> NDArray:
        """The flat arrays of all workers, (W, N), to the bit and in the order of their ranks: what a computation needs
        of the others before it can go on. Asynchronous.

        Args:
            flat: (N,), float32 or float64, on any device.
        """
        return flat.reshape((1, -1))

    def total(self, values: Numbers) -> np.ndarray:
        """The sums of some numbers over workers, in float64. Waits for all."""
        return np.asarray(values, np.float64)

    def total_later(self, values: Numbers) -> Callable[[], np.ndarray]:
        """Sums as `total` does, for whole numbers; waits when the result is asked for."""
        found = self.total(values)
        return lambda: found

    def votes_later(self, votes: Sequence[float], lag: int) -> Callable[[], np.ndarray]:
        """Sums as `total_later` does, for what this worker wants after its last step. All workers find the same after
        the same step, if they ask `lag` steps later."""
        return self.total_later(votes)

    def average(self, arrays: Sequence[NDArray]) -> None:
        """Makes what workers keep by themselves the mean over them. Nothing to do where each step agrees on all."""

    def agree(self, values: Dict[str, float]) -> Dict[str, float]:
        """The values that rank 0 has. Nothing to do where each step agrees on all."""
        return values

    def scalars(self) -> Dict[str, float]:
        """Values worth watching since the last call, by TensorBoard tag."""
        return {}

    def summary(self) -> Dict[str, float]:
        """The values of `scalars` over the whole time of this process."""
        return {}

    def confirm(self, arrays: Sequence[NDArray]) -> None:
        """Called with what `reduce` and `all_reduce` gave, before anything is computed from it.

        Raises:
            PeersLost: another worker has gone, and the others can go on without it.
        """

    def drain(self) -> None:
        """After `PeersLost`: waits until nothing is under way. Until then, MXNet writes nothing to an array that a
        failed sum was to be written to."""

    def resume_from(self, step: int) -> None:
        """Called after `regroup`, when all workers are at this step again."""

    @property
    def elastic(self) -> bool:
        """True if workers may come and go."""
        return False

    def wants_regroup(self) -> bool:
        """Returns True if somebody waits to join; rank 0 is told."""
        return False

    def regroup(self) -> None:
        """Makes a new `world` of the workers that are there, after `PeersLost`."""
        raise NotImplementedError(f"{type(self).__name__} cannot lose a worker.")

    def residuals(self, reductions: Sequence[Reduction]) -> Dict[str, np.ndarray]:
        """Returns the compression residuals of all workers, on rank 0. Waits for all workers.

        Returns:
            `<parameter>:<rank>` -> host copy, in the parameter's shape; `<parameter>:<name>` of further state. Empty
            without compression, and incomplete on other workers than rank 0.
        """
        return {}

    def restore_residuals(self, reductions: Sequence[Reduction], arrays: Mapping[str, np.ndarray]) -> None:
        """Puts back what `residuals` gave, here perhaps for another number of workers; nothing of an empty one.

        Raises:
            CheckpointError: it is of other parameters.
        """

    def close(self) -> None:
        """Leaves the others, after all of them have come to this. Only at the end of a run that ended well."""
        with suppress(PeersLost):  # all is done and saved
            self.total([0.0])  # no worker leaves while another still needs it
        disconnect(self._disconnect)

    def _disconnect(self) -> None:
        """Ends the connection to the others."""

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        """The rows of all workers, (N, width) float64, in the order of their ranks, on all of them. Waits for all."""
        if self.world.size == 1:
            return rows
        own = [len(rows) if rank == self.world.rank else 0 for rank in range(self.world.size)]
        counts = self.total(own).astype(int)
        found = np.zeros((counts.sum(), rows.shape[1]))
        begin = counts[: self.world.rank].sum()
        found[begin : begin + len(rows)] = rows
        # What the others add to a number is 0, so it arrives as it is.
        return self.total(found.ravel()).reshape(found.shape) if len(found) else found

    def broadcast(self, blob: Optional[bytes]) -> bytes:
        """Returns on all workers the bytes that rank 0 gives; the others give None. Waits for all."""
        if self.world.size == 1:
            assert blob is not None
            return blob
        (size,) = self.total([len(blob or b"")]).astype(int)
        padded = (blob or b"") + b"\0" * (size % 2 if self.world.rank == 0 else 0)
        # Two bytes a number: float32 holds them exactly, and what the others add is 0.
        own = np.frombuffer(padded, "<u2") if self.world.rank == 0 else np.zeros((size + 1) // 2)
        pieces: List[bytes] = []
        for begin in range(0, len(own), PIECE):
            piece = np.zeros(PIECE)
            part = own[begin : begin + PIECE]
            piece[: len(part)] = part
            pieces.append(self.total_later(piece)()[: len(part)].astype("<u2").tobytes())
        return b"".join(pieces)[:size]
