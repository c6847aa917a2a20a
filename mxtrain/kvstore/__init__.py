"""Gradient stores: where the gradients of replicas meet.

A description (`KVStore`) makes a store for one run; the store sums, and nothing else: the optimizer runs where the
parameters are.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Optional

from mxtrain.types import PositiveFloat, Spec


class KVStore(Spec):
    """Describes where the gradients of replicas meet. A new one is a subclass and one YAML in conf/kvstore/."""

    needs_gpus: ClassVar[bool] = False
    """Whether it works between GPUs only."""

    def build(self) -> Any:
        """The store of one run: `reduce(reductions)` sums each parameter's gradients into its owner's, in place.

        Raises:
            ConfigError: this MXNet or this machine lacks it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to build its store.")


class Local(KVStore):
    """MXNet's `local`: sums in host memory."""

    def build(self) -> Any:
        from mxtrain.kvstore.mxnet_store import MXNetStore

        return MXNetStore("local")


class Device(KVStore):
    """MXNet's `device`: each parameter's gradients are summed on one of the devices, which take turns."""

    compression: Literal["none", "2bit"] = "none"
    """2bit: every element travels as -threshold, 0 or +threshold, and what is left over is added to the next gradient.
    What is left over lies inside MXNet, which cannot give it out: a resumed run begins with none."""
    threshold: Optional[PositiveFloat] = None
    """Of 2bit compression, in the unit of a gradient; needed by it."""
    tree: bool = False
    """Sum along the tree of GPU links that MXNet finds (MXNET_KVSTORE_USETREE); between GPUs only."""

    def build(self) -> Any:
        from mxtrain.kvstore.mxnet_store import MXNetStore

        return MXNetStore("device", threshold=self.threshold if self.compression == "2bit" else None, tree=self.tree)


class NCCL(KVStore):
    """NVIDIA's collective library between GPUs."""

    needs_gpus: ClassVar[bool] = True

    def build(self) -> Any:
        from mxtrain.kvstore.mxnet_store import MXNetStore, require_nccl

        require_nccl()
        return MXNetStore("nccl")
