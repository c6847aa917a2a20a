"""MXNet's own stores within one process, as nothing but a sum."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store

if TYPE_CHECKING:
    from mxtrain.parallel.base import Reduction


class MXNetStore(Store):
    """One of MXNet's stores: local, device or nccl.

    All keys go to MXNet in one call, so that Python costs little; the engine sums each as soon as its gradients are
    there, while the rest of the backward pass is still running.

    Args:
        kind: what MXNet calls it.
        threshold: of 2-bit compression, or None.
        tree: sum along the tree of GPU links.
    """

    def __init__(self, kind: str, threshold: Optional[float] = None, tree: bool = False):
        self._kind, self._threshold, self._tree = kind, threshold, tree
        self._store: mx.kv.KVStore = None  # made with the first sum
        self._calls: Dict[str, Any] = {}

    def reduce(self, reductions: Sequence[Reduction]) -> None:
        """Sums each parameter's gradients into its owner's, in place; with one replica there is nothing to do.

        Args:
            reductions: the same ones in every step.
        """
        if not reductions or len(reductions[0].replicas) == 1:
            return
        if self._store is None:
            replicas = [list(reduction.replicas) for reduction in reductions]
            # A list of lists, one of one array per key: a flat list of one key would mean something else.
            self._prepare(replicas, [[reduction.replicas[reduction.owner]] for reduction in reductions])
        self._push_and_pull()

    def sum_everywhere(self, replicas: Sequence[Sequence[nd.NDArray]]) -> None:
        """Makes the copies of each array, one per replica, their sum.

        Args:
            replicas: the same ones in every step; a store that is used so is used for nothing else.
        """
        if self._store is None:
            self._prepare([list(arrays) for arrays in replicas], [list(arrays) for arrays in replicas])
        self._push_and_pull()

    def _push_and_pull(self) -> None:
        self._store.push(**self._calls["push"])
        self._store.pull(**self._calls["pull"])

    def _prepare(self, pushed: List[List[nd.NDArray]], pulled: List[List[nd.NDArray]]) -> None:
        if self._tree:
            os.environ["MXNET_KVSTORE_USETREE"] = "1"  # read when the store is made
        store = mx.kv.create(self._kind)
        if self._threshold is not None:
            store.set_gradient_compression({"type": "2bit", "threshold": self._threshold})
        keys = list(range(len(pushed)))
        store.init(keys, [nd.zeros_like(arrays[0]) for arrays in pushed])
        self._calls = {"push": {"key": keys, "value": pushed}, "pull": {"key": keys, "out": pulled}}
        self._store = store


def require_nccl() -> None:
    """Raises: ConfigError: this MXNet was built without NCCL, or there is no GPU."""
    if not mx.runtime.Features().is_enabled("NCCL"):
        raise ConfigError(
            "kvstore=nccl: this MXNet was built without NCCL (the CPU wheel has none). Use kvstore=device, or install "
            "a CUDA wheel: see the README, GPUs."
        )
    if mx.context.num_gpus() == 0:
        raise ConfigError("kvstore=nccl: MXNet sees no GPU here. Use kvstore=device.")
