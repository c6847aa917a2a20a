"""MXNet's own stores within one process, as nothing but a sum.

With `kvstore=nccl`, one call sums into the gradients of all replicas, and each stage has a store of its own: MXNet's
NCCL store requires that every call names the devices of the first one.
"""

from __future__ import annotations

import functools
import os
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.store import Store


class MXNetStore(Store):
    """One of MXNet's stores: local or device.

    All keys go to MXNet in one call, so that Python costs little; the engine sums each as soon as its gradients are
    there, while the rest of the backward pass is still running.

    Args:
        kind: what MXNet calls it.
        threshold: of 2-bit compression, or None.
        tree: sum along the tree of GPU links.
    """

    def __init__(self, kind: str, threshold: Optional[float] = None, tree: bool = False):
        self._kind, self._threshold, self._tree = kind, threshold, tree
        self._calls: List[Callable[[], None]] = []  # made with the first sum

    def reduce(self, reductions: Sequence[Reduction]) -> None:
        """Sums each parameter's gradients into its owner's, in place; with one replica there is nothing to do.

        Args:
            reductions: the same ones in every step.
        """
        if not reductions or len(reductions[0].replicas) == 1:
            return
        if not self._calls:
            self._calls = self._prepare(reductions)
        for call in self._calls:
            call()

    def sum_everywhere(self, replicas: Sequence[Sequence[nd.NDArray]]) -> None:
        """Makes the copies of each array, one per replica, their sum.

        Args:
            replicas: the same ones in every step; a store that is used so is used for nothing else.
        """
        if not self._calls:
            arrays = [list(copies) for copies in replicas]
            self._calls = [self._sum(arrays, arrays)]
        for call in self._calls:
            call()

    def _prepare(self, reductions: Sequence[Reduction]) -> List[Callable[[], None]]:
        """Returns the calls that sum the gradients."""
        replicas = [list(reduction.replicas) for reduction in reductions]
        # A list of lists, one of one array per key: a flat list of one key would mean something else.
        return [self._sum(replicas, [[reduction.replicas[reduction.owner]] for reduction in reductions])]

    def _sum(self, pushed: List[List[nd.NDArray]], pulled: List[List[nd.NDArray]]) -> Callable[[], None]:
        """Returns the call of a new store of MXNet's that sums each list of arrays into another."""
        if self._tree:
            os.environ["MXNET_KVSTORE_USETREE"] = "1"  # read when the store is made
        store = mx.kv.create(self._kind)
        if self._threshold is not None:
            store.set_gradient_compression({"type": "2bit", "threshold": self._threshold})
        keys = list(range(len(pushed)))
        store.init(keys, [nd.zeros_like(arrays[0]) for arrays in pushed])
        return functools.partial(store.pushpull, keys, pushed, pulled)


class NCCLStore(MXNetStore):
    """MXNet's nccl. It knows one set of devices, which each call must name as a whole (`KVStoreNCCL` in MXNet's
    src/kvstore/kvstore_nccl.h): so the sum is written to all replicas, and each stage has a store of its own."""

    def __init__(self) -> None:
        super().__init__("nccl")

    def _prepare(self, reductions: Sequence[Reduction]) -> List[Callable[[], None]]:
        by_devices: Dict[FrozenSet[mx.Context], List[List[nd.NDArray]]] = {}
        for reduction in reductions:
            arrays = list(reduction.replicas)
            by_devices.setdefault(frozenset(array.context for array in arrays), []).append(arrays)
        # NCCL gets all keys of a stage as one group, so it sums after the whole backward pass; earlier groups were not
        # tried.
        return [self._sum(arrays, arrays) for arrays in by_devices.values()]


def require_nccl() -> None:
    """Checks that NCCL can be used.

    Raises:
        ConfigError: this MXNet was built without NCCL, or there is no GPU.
    """
    if not mx.runtime.Features().is_enabled("NCCL"):
        raise ConfigError(
            "kvstore=nccl: this MXNet was built without NCCL (the CPU wheel has none). Use kvstore=device, or install "
            "a CUDA wheel: see the README, GPUs."
        )
    if mx.context.num_gpus() == 0:
        raise ConfigError("kvstore=nccl: MXNet sees no GPU here. Use kvstore=device.")
