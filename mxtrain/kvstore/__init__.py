"""Gradient stores: where the gradients of replicas meet.

A description (`KVStore`) makes a store for one run; the store sums, and nothing else: the optimizer runs where the
parameters are.
"""

from __future__ import annotations

from typing import Any, Literal, Optional

from mxtrain.types import PositiveFloat, Spec


class KVStore(Spec):
    """Describes where the gradients of replicas meet. A new one is a subclass and one YAML in conf/kvstore/."""

    def reason_against(self, devices: str) -> str:
        """Why it cannot work between such devices (`parallel.devices`), or "". Imports no MXNet."""
        return ""

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

    def reason_against(self, devices: str) -> str:
        if self.compression == "2bit" and self.threshold is None:
            return (
                "kvstore.compression=2bit needs kvstore.threshold: gradients travel as -threshold, 0 or +threshold. "
                "Type about the size of the larger gradients, e.g. kvstore.threshold=0.01."
            )
        if self.tree and devices.startswith("cpu"):
            return f"kvstore.tree=true with parallel.devices={devices}: the tree is made of links between GPUs."
        return ""

    def build(self) -> Any:
        from mxtrain.kvstore.mxnet_store import MXNetStore

        return MXNetStore("device", threshold=self.threshold if self.compression == "2bit" else None, tree=self.tree)


class NCCL(KVStore):
    """NVIDIA's collective library between GPUs."""

    def reason_against(self, devices: str) -> str:
        if devices.startswith("cpu"):
            return (
                f"kvstore=nccl with parallel.devices={devices}: NCCL works between NVIDIA GPUs only. Type "
                "kvstore=local or kvstore=device."
            )
        return ""

    def build(self) -> Any:
        from mxtrain.kvstore.mxnet_store import MXNetStore, require_nccl

        require_nccl()
        return MXNetStore("nccl")
