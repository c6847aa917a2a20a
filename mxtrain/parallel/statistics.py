"""Moving statistics of batch norms, of which each replica has its own until a step ends. Imports MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Mapping, Sequence

from mxtrain.engine.backend import STATISTICS, nd
from mxtrain.engine.parameter_names import role_of
from mxtrain.kvstore.mxnet_store import MXNetStore

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.kvstore.store import Store


def moving_statistics(
    parameters: Mapping[str, gluon.Parameter], copies: Mapping[str, List[NDArray]]
) -> List[List[NDArray]]:
    """Returns, for each batch-norm statistic that moves, its copy on each replica.

    Args:
        parameters: by structural name.
        copies: of each parameter, by the same name.
    """
    # Statistics of a frozen batch norm do not change. `freeze` marks them by lr_mult=0, since statistics have no
    # gradient.
    return [
        copies[name] for name, parameter in parameters.items() if role_of(name) in STATISTICS and parameter.lr_mult != 0
    ]


class MovingStatistics:
    """Makes the moving statistics of all replicas and workers one value after each step.

    Args:
        moving: per statistic, its copy on each replica.
        num_replicas: of this worker.
        device_type: "cpu" or "gpu".
        workers: the store by which workers agree.
    """

    def __init__(self, moving: Sequence[List[NDArray]], num_replicas: int, device_type: str, workers: Store):
        self._moving, self._num_replicas, self._workers = moving, num_replicas, workers
        self._store = MXNetStore("device" if device_type == "gpu" else "local")

    def all_reduce(self, sums: NDArray, global_size: int, num_parts: int) -> None:
        """Sums over all workers, and sets the statistics of every replica to the mean over replicas that saw
        samples: so there is one canonical value after each step, and it is what a checkpoint holds.

        Args:
            sums: what a meter counted of this worker's share.
            global_size: samples of the whole batch.
            num_parts: parts of a batch, of which the first is the largest.

        Collective: every worker must call it.
        """
        world = self._workers.world
        num_active = self._num_active(global_size, world.rank, num_parts)
        share = 1.0 / sum(self._num_active(global_size, worker, num_parts) for worker in range(world.size))
        if world.size == 1 and num_active == self._num_replicas > 1 and self._moving:  # all at once
            self._store.sum_everywhere(self._moving)
            for replicas in self._moving:
                for array in replicas:
                    nd._internal._mul_scalar(array, scalar=share, out=array)
            return
        for root, *copies in self._moving:
            if num_active == 0:
                # A worker whose replicas saw no samples adds zeros to the sum.
                nd.zeros_like(root, out=root)
            elif num_active > 1:
                active_arrays = [array.as_in_context(root.context) for array in (root, *copies)[:num_active]]
                nd.add_n(*active_arrays).copyto(root)
        # Statistics travel with the meter's sums, in one message.
        self._workers.all_reduce([sums, *(replicas[0] for replicas in self._moving)])
        for root, *copies in self._moving:
            nd._internal._mul_scalar(root, scalar=share, out=root)
            for array in copies:
                root.copyto(array)

    def _num_active(self, global_size: int, worker: int, num_parts: int) -> int:
        """Returns the number of a worker's replicas that get samples in the first, largest part of a batch."""
        begin, end = self._workers.world.share_of(worker, global_size)
        largest = -(-(end - begin) // min(num_parts, max(end - begin, 1)))
        return min(largest, self._num_replicas)
