"""Gradient stores, which sum the gradients of replicas and workers.

A description (`KVStore`) builds the store of a run. Stores only sum; the optimizer runs where the parameters are.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Dict, Literal, Optional, Tuple

from mxtrain.config.options import setting_of
from mxtrain.kvstore.world import ALONE, World
from mxtrain.types import Positive, PositiveFloat, ProperFraction, Spec

if TYPE_CHECKING:
    from mxtrain.kvstore.compression import Build
    from mxtrain.kvstore.joined_store import JoinedStore
    from mxtrain.kvstore.store import Store


WITHOUT_LOCAL_SGD = "kvstore.sync_every=null"
"""Setting with which workers sum their gradients in every step."""
NO_THRESHOLD = (
    "kvstore.compression=2bit needs kvstore.threshold: gradients travel as -threshold, 0 or +threshold. "
    "Type about the size of the larger gradients, e.g. kvstore.threshold=0.01."
)


def _threshold_problem(compression: str, threshold: Optional[float]) -> str:
    """Returns why compression and threshold do not fit together; empty if they do."""
    if compression == "2bit" and threshold is None:
        return NO_THRESHOLD
    if compression != "2bit" and threshold is not None:
        return (
            f"kvstore.threshold={threshold:g} with kvstore.compression={compression}: only 2bit has a threshold. Type "
            "kvstore.compression=2bit, or leave kvstore.threshold out."
        )
    return ""


class KVStore(Spec):
    """Describes how the gradients of replicas and workers are summed.

    To add a store, write a subclass and a YAML file in conf/kvstore/.
    """

    distributed: ClassVar[bool] = False
    """True if it joins several processes."""
    van: ClassVar[Optional[str]] = None
    """Transport name of ps-lite, equal in all processes; None without parameter servers."""
    servers_update: ClassVar[bool] = False
    """True if servers apply the optimizer, to each worker's gradient by itself."""
    gives_chunks: ClassVar[bool] = False
    """True if its servers give chunks of the data to workers, for `cluster.balance=dynamic`."""
    ring: ClassVar[bool] = False
    """True if workers find each other through their supervisor, and may come and go."""

    @property
    def independence(self) -> Tuple[str, str]:
        """Returns the setting that makes each worker step with its own gradient only, so that the workers' weights
        differ, and the setting to type instead. Two empty strings if every step uses the sum over workers."""
        return (self.setting, "kvstore=dist_sync") if self.servers_update else ("", "")

    @property
    def independent_steps(self) -> bool:
        """Returns True if a step of a worker uses its own gradient only."""
        return bool(self.independence[0])

    @property
    def shards_optimizer(self) -> bool:
        """Returns True if each worker holds the optimizer state of a part of the parameters, and updates these."""
        return False

    @property
    def is_elastic(self) -> bool:
        """Returns True if the other workers go on without a lost one; otherwise all restart from a checkpoint."""
        return self.ring

    @property
    def setting(self) -> str:
        """Returns the setting that chooses this store, for messages, e.g. "kvstore=dist_sync"."""
        return setting_of("kvstore", self)

    @property
    def serves_tables(self) -> bool:
        """Returns True if servers hold the rows of large tables."""
        return False

    @property
    def compresses_by(self) -> str:
        """Returns the compression of gradient messages, or "none"."""
        return "none"

    @property
    def bucket_bytes(self) -> int:
        """Returns the size of a full message of gradients, before compression."""
        return 4 << 20

    @property
    def needs_whole_gradients(self) -> Tuple[str, str]:
        """Returns why gradients of a few table rows are not supported, as a clause, and the setting that supports them.

        Returns two empty strings if they are supported.
        """
        if self.compresses_by == "none":
            return "", ""
        reason = "what it leaves out of a message belongs to rows that the next one may not hold"
        return f"kvstore.compression={self.compresses_by}: {reason}", "kvstore.compression=none"

    def unsupported_reason(self, devices: str, num_workers: int = 1) -> str:
        """Returns why the store does not support these devices; empty if it does. Does not import MXNet.

        Args:
            devices: `parallel.devices`.
            num_workers: number of workers.
        """
        return ""

    def build(self, world: World = ALONE) -> Store:
        """Builds the store of a run. Waits for the other workers.

        Raises:
            ConfigError: MXNet or the machine does not support the store.
        """
        raise NotImplementedError


class Local(KVStore):
    """MXNet's `local`: sums in host memory."""

    def build(self, world: World = ALONE) -> Store:
        from mxtrain.kvstore.mxnet_store import MXNetStore

        return MXNetStore("local")


class Device(KVStore):
    """MXNet's `device`: each parameter's gradients are summed on one of the devices, which take turns."""

    compression: Literal["none", "2bit"] = "none"
    """2bit: every element travels as -threshold, 0 or +threshold, and the residual is added to the next gradient.
    The residual is kept inside MXNet, which cannot export it: a resumed run begins with none."""
    threshold: Optional[PositiveFloat] = None
    """Threshold of 2bit compression, in the unit of a gradient; required for 2bit."""
    tree: bool = False
    """Sum along the tree of GPU links that MXNet finds (MXNET_KVSTORE_USETREE); between GPUs only."""

    @property
    def compresses_by(self) -> str:
        return self.compression

    def unsupported_reason(self, devices: str, num_workers: int = 1) -> str:
        if self.tree and devices.startswith("cpu"):
            return f"kvstore.tree=true with parallel.devices={devices}: the tree is made of links between GPUs."
        return _threshold_problem(self.compression, self.threshold)

    def build(self, world: World = ALONE) -> Store:
        from mxtrain.kvstore.mxnet_store import MXNetStore

        return MXNetStore("device", threshold=self.threshold if self.compression == "2bit" else None, tree=self.tree)


class NCCL(KVStore):
    """NVIDIA's collective library between GPUs."""

    def unsupported_reason(self, devices: str, num_workers: int = 1) -> str:
        if devices.startswith("cpu"):
            return (
                f"kvstore=nccl with parallel.devices={devices}: NCCL works between NVIDIA GPUs only. Type "
                "kvstore=local or kvstore=device."
            )
        return ""

    def build(self, world: World = ALONE) -> Store:
        from mxtrain.kvstore.mxnet_store import NCCLStore, require_nccl

        require_nccl()
        return NCCLStore()


class Joined(KVStore):
    """Base of the stores that join workers in several processes. Gradients may travel between them in fewer bytes."""

    distributed: ClassVar[bool] = True
    compression: Literal["none", "fp16", "bf16", "2bit", "topk"] = "none"
    """Gradient compression with error feedback: the part left out of a message is added to the next gradient, and saved
    in checkpoints. fp16, bf16: 16-bit numbers; 2bit: every element as -threshold, 0 or +threshold; topk: only the
    largest elements."""
    threshold: Optional[PositiveFloat] = None
    """Threshold of 2bit compression, in the unit of a worker's share of the gradient; required for 2bit."""
    ratio: ProperFraction = 0.01
    """Fraction of the elements that topk compression sends: the largest of each bucket."""

    @property
    def compresses_by(self) -> str:
        return self.compression

    def unsupported_reason(self, devices: str, num_workers: int = 1) -> str:
        if self.compression == "topk" and 2 * num_workers * self.ratio >= 1:
            return (
                f"kvstore.ratio={self.ratio:g} with cluster.workers={num_workers}: each element is sent with its "
                f"index, and with the elements of all workers: {2 * num_workers * self.ratio:.3g} times the bytes of "
                f"kvstore.compression=none. Type a kvstore.ratio well below {1 / (2 * num_workers):.3g}, e.g. 0.01."
            )
        return _threshold_problem(self.compression, self.threshold)

    def build_compressor(self) -> Build:
        """Returns the builder of the compressors of gradients."""
        from mxtrain.kvstore.compression import compressor_of

        options: Dict[str, Dict[str, Optional[float]]] = {
            "2bit": {"threshold": self.threshold},
            "topk": {"ratio": self.ratio},
        }
        return compressor_of(self.compression, **options.get(self.compression, {}))


class Summing(Joined):
    """Base of the stores whose workers compute sums together, in each step or (local SGD) from time to time."""

    sync_every: Optional[Positive] = None
    """Local SGD: each worker takes so many steps with its own optimizer and its share of each batch, then the workers
    synchronise their weights. null: gradients are summed in every step."""
    outer_optimizer: Literal["average", "nesterov"] = "average"
    """With `sync_every`: how weights are synchronised. average: to their mean; nesterov: the mean of their changes is
    the gradient of SGD with Nesterov momentum (DiLoCo)."""
    outer_lr: Optional[PositiveFloat] = None
    """Learning rate of `outer_optimizer=nesterov`; null: 0.7."""
    outer_momentum: Optional[ProperFraction] = None
    """Momentum of `outer_optimizer=nesterov`; null: 0.9."""

    shard_optimizer: bool = False
    """ZeRO-1: each worker holds the optimizer state of a part of the parameters, updates these, and sends them to the
    others. Same bits, 1.5 times the traffic, and 1/workers of the memory for optimizer state. After the loss of a
    worker all restart from a checkpoint."""

    @property
    def shards_optimizer(self) -> bool:
        return self.shard_optimizer

    @property
    def independence(self) -> Tuple[str, str]:
        return ("", "") if self.sync_every is None else (f"kvstore.sync_every={self.sync_every}", WITHOUT_LOCAL_SGD)

    @property
    def is_elastic(self) -> bool:
        return self.ring and not self.independent_steps and not self.shard_optimizer

    @property
    def needs_whole_gradients(self) -> Tuple[str, str]:
        if self.independent_steps:
            reason = "the differences of weights are of all rows"
            return f"kvstore.sync_every={self.sync_every}: {reason}", WITHOUT_LOCAL_SGD
        if self.shard_optimizer:
            reason = "workers send whole parameters after an update"
            return f"kvstore.shard_optimizer=true: {reason}", "kvstore.shard_optimizer=false"
        return super().needs_whole_gradients

    def unsupported_reason(self, devices: str, num_workers: int = 1) -> str:
        if self.shard_optimizer and self.sync_every is not None:
            return (
                f"kvstore.shard_optimizer=true with kvstore.sync_every={self.sync_every}: between two synchronisations "
                f"each worker updates all parameters. Type kvstore.shard_optimizer=false, or {WITHOUT_LOCAL_SGD}."
            )
        names = [name for name in ("lr", "momentum") if getattr(self, f"outer_{name}") is not None]
        settings = [f"kvstore.outer_{name}={getattr(self, f'outer_{name}'):g}" for name in names]
        if self.outer_optimizer == "average" and self.sync_every is not None and settings:
            return (
                f"{settings[0]} with kvstore.outer_optimizer=average: a mean has no {names[0]}. Type "
                "kvstore.outer_optimizer=nesterov, or leave it out."
            )
        if self.outer_optimizer == "nesterov":
            settings.append("kvstore.outer_optimizer=nesterov")
        if self.sync_every is None and settings:
            return (
                f"{settings[-1]} without kvstore.sync_every: gradients are summed in every step, so there is no outer "
                "optimizer. Type kvstore.sync_every=100 for local SGD, or leave it out."
            )
        return super().unsupported_reason(devices, num_workers)

    def build(self, world: World = ALONE) -> Store:
        store = self.connect(world)
        if self.sync_every is None:
            store.shards_optimizer = self.shard_optimizer
            return store
        from mxtrain.kvstore.local_sgd import LocalSGDStore, OuterOptimizer

        outer = OuterOptimizer()
        if self.outer_optimizer == "nesterov":
            outer = OuterOptimizer(
                0.7 if self.outer_lr is None else self.outer_lr,
                0.9 if self.outer_momentum is None else self.outer_momentum,
            )
        return LocalSGDStore(store, self.sync_every, outer)

    def connect(self, world: World) -> JoinedStore:
        """Connects the workers. Waits for all of them."""
        raise NotImplementedError


class ParameterServer(Summing):
    """MXNet's parameter server (ps-lite): servers sum what all workers push, and every worker updates the same."""

    kind: ClassVar[str] = "dist_sync"
    """Name of the store in MXNet."""
    van: ClassVar[Optional[str]] = "zmq"
    tables: Literal["workers", "servers"] = "workers"
    """Location of the rows of large embedding tables (trainer.sparse_grad) and of their optimizer state. workers: each
    has a whole copy; servers: each has a part, and workers request the rows of their batches."""

    @property
    def serves_tables(self) -> bool:
        return self.tables == "servers"

    def connect(self, world: World) -> JoinedStore:
        from mxtrain.kvstore.dist_store import DistStore

        return DistStore(self.kind, world, by_priority=self.van == "p3", compressor=self.build_compressor())


class DistSync(ParameterServer):
    """`dist_sync`: a worker's replicas are summed in host memory, then on the servers."""


class DistDeviceSync(ParameterServer):
    """`dist_device_sync`: a worker's replicas are summed on its devices, then on the servers."""

    kind: ClassVar[str] = "dist_device_sync"


class DistAsync(Joined):
    """`dist_async`: servers apply every worker's gradient at once, to the weights as they then are. No worker waits for
    another. A step of N workers makes N updates, each by the mean gradient over that worker's share of the batch. With
    compression the weights come back as compressed changes."""

    van: ClassVar[Optional[str]] = "zmq"
    servers_update: ClassVar[bool] = True
    gives_chunks: ClassVar[bool] = True
    tables: Literal["workers", "servers"] = "workers"
    """servers: hold the rows of large embedding tables (trainer.sparse_grad), and workers request the rows of their
    batches; workers: each has a whole copy, and gradients of all rows are sent."""

    @property
    def serves_tables(self) -> bool:
        return self.tables == "servers"

    @property
    def needs_whole_gradients(self) -> Tuple[str, str]:
        if self.serves_tables:
            return super().needs_whole_gradients
        return (
            f"the servers of {self.setting} update whole parameters, unless they hold the tables",
            "kvstore.tables=servers",
        )

    def build(self, world: World = ALONE) -> Store:
        from mxtrain.kvstore.async_store import AsyncStore

        return AsyncStore(world, self.build_compressor_pair())

    def unsupported_reason(self, devices: str, num_workers: int = 1) -> str:
        return super().unsupported_reason(devices)  # servers update with each worker's gradients, without a sum

    def build_compressor_pair(self) -> Optional[Tuple[Build, Build]]:
        """Returns builders of the compressors of gradients and of weight changes; None without compression."""
        if self.compression == "none":
            return None
        # Servers divide weight changes by their mean size before they compress them, so their threshold is 1.
        return self.build_compressor(), self.model_copy(update={"threshold": 1.0}).build_compressor()


class P3(ParameterServer):
    """`dist_sync` over ps-lite's P3: gradients are sent in slices, first layers first, because the next step needs them
    first.

    Source: Jayarajan et al., Priority-based Parameter Propagation, https://arxiv.org/abs/1905.03960.
    """

    van: ClassVar[Optional[str]] = "p3"


class Horovod(Summing):
    """Horovod's ring all-reduce between workers, with no servers: Gloo, or MPI and NCCL where they were built in."""

    ring: ClassVar[bool] = True
    hierarchical: bool = False
    """Sum within each host first, then between one worker of each host, then send the sums to the others of the host:
    less traffic between hosts that have several workers. Sums are rounded in another order. Without effect if all
    workers are on one host, or each is on its own."""
    bucket_mib: Optional[PositiveFloat] = None
    """Size of the messages of gradients, in MiB; null: 4, and with `sync_every` 16. Messages are summed one after the
    other, so larger ones are faster on links with a long delay; smaller ones leave earlier, while backward still
    runs."""
    elastic: bool = True
    """After the loss of a worker the others continue without it, until another joins. false: all workers restart from
    the last checkpoint, so the weights have the same bits as those of an unbroken run."""

    @property
    def is_elastic(self) -> bool:
        # Horovod ends the processes of the other members if one of a process set is lost.
        return self.elastic and super().is_elastic and not self.hierarchical

    @property
    def bucket_bytes(self) -> int:
        # With local SGD all messages are ready at the same time, so there is no gain from small ones.
        return int((self.bucket_mib or (4 if self.sync_every is None else 16)) * 2**20)

    def unsupported_reason(self, devices: str, num_workers: int = 1) -> str:
        if has_horovod():
            return super().unsupported_reason(devices, num_workers)
        return (
            "kvstore=horovod: Horovod with MXNet is not in this environment. `scripts/horovod` builds it (two minutes; "
            "needs a C++ compiler and CMake), or type kvstore=dist_sync."
        )

    def connect(self, world: World) -> JoinedStore:
        from mxtrain.kvstore.horovod_store import HorovodStore

        return HorovodStore(world, self.build_compressor(), self.hierarchical, self.bucket_bytes, self.is_elastic)


def has_horovod() -> bool:
    """Returns True if Horovod is installed and was built for MXNet. Imports neither."""
    spec = importlib.util.find_spec("horovod")
    folders = spec.submodule_search_locations if spec else None
    return any(list(Path(folder).glob("mxnet/mpi_lib*.so")) for folder in folders or ())
