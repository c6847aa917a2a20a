"""Descriptions of the parallel strategies: replicas x stages devices, with each replica's share in microbatches.

    parallel=    replicas   stages   microbatches
    single          1          1          1
    data            R          1          1
    model           1          S          1
    pipeline        1          S          M
    hybrid          R          S          M
    auto            chosen by `train` before the run, then one of these

R, S and M are numbers that the user sets. A strategy only fixes the axes; `mxtrain.parallel.grid.Grid` runs all of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Dict, List, Literal, Optional, Tuple, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.cluster.launched import OWN_GPUS, has_own_gpus
from mxtrain.cluster.member import LocalRank, find_local_rank
from mxtrain.errors import ConfigError
from mxtrain.parallel.base import Strategy
from mxtrain.parallel.layout import Layout
from mxtrain.parallel.objective import Objective
from mxtrain.runtime.gpus import REMEDY, find_gpus, is_published_build, unsupported_reason
from mxtrain.types import Positive, Spec

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.kvstore.store import Store

Devices = Annotated[str, pydantic.Field(pattern=r"^(auto|(cpu|gpu):[1-9][0-9]{0,2})$")]
Auto = Literal["auto"]
CPU_DEVICES_PER_AXIS = 2
"""Meaning of `auto` for an axis without GPUs."""


class Parallel(Spec):
    """Placement of the computation on replicas x stages devices, with each replica's share in microbatches."""

    devices: Devices = "auto"
    """`auto`, or a kind and a number of devices, e.g. cpu:2 or gpu:4. CUDA_VISIBLE_DEVICES=1,3 selects GPUs. Each
    worker takes this number: the first worker of a host the first devices, the second worker the next ones."""
    batch_norm: Literal["per_device", "replicas", "global"] = "per_device"
    """Samples over which batch normalization computes mean and variance: `per_device`: those processed together on a
    device, as in MXNet; `replicas`: samples of the microbatches with the same number on all replicas and workers;
    `global`: the whole batch."""
    recompute: Union[Literal["off", "auto"], Positive] = "off"
    """Activation recomputation (gradient checkpointing), which trades time for memory: the layers of each device are
    divided into this number of segments. Only the tensors between segments are kept; the backward pass computes each
    segment again, but for the last one of the network. Gradients, random masks and batch-norm statistics are those of
    `off`. auto: as few layers are recomputed as possible while activations need a quarter of their memory."""
    is_chosen_before_run: ClassVar[bool] = False
    """True if `train` replaces it by another placement before the run."""

    @pydantic.model_validator(mode="after")
    def _check_recompute(self) -> Parallel:
        if self.recompute != "off" and self.batch_norm != "per_device":
            raise ValueError(
                f"recompute={self.recompute} with batch_norm={self.batch_norm}: a batch norm over several devices "
                "exchanges its statistics in one pass, and cannot be computed again. Type parallel.recompute=off, or "
                "parallel.batch_norm=per_device"
            )
        return self

    def require_chosen(self, command: str) -> None:
        """Rejects a placement that is chosen before a run, for a command that trains several runs.

        Args:
            command: name of the command, for the message; "-m" for a sweep.

        Raises:
            ConfigError: the placement is `auto`.
        """
        if self.is_chosen_before_run:
            raise ConfigError(
                f"parallel=auto: {command} trains several runs, and a placement is measured for a single one. Type "
                "`python -m mxtrain plan` with the overrides of one of the runs, and the placement that it names."
            )

    def axes(self, num_gpus: int = 0) -> Tuple[int, int]:
        """Returns (replicas, stages) with `auto` resolved.

        Args:
            num_gpus: GPUs of this worker; 0 on a CPU.

        Raises:
            ConfigError: the product is not the number of devices.
        """
        return fit_axes(self, num_gpus)

    def num_microbatches(self) -> int:
        """Returns the number of microbatches of each replica's share of a batch."""
        return 1

    @property
    def pipeline_schedule(self) -> str:
        """Returns the order of forward and backward passes: "gpipe" or "1f1b"."""
        return "gpipe"

    @property
    def stage_layers(self) -> List[str]:
        """Returns the layers that begin a stage, if the user names them; else []."""
        return []

    def num_devices(self) -> int:
        """Returns the number of devices, as far as it is known without asking MXNet for GPUs."""
        replicas, stages = self.axes()
        return replicas * stages

    def resolve_devices(self) -> List[List[Context]]:
        """Returns the devices of this worker as [replica][stage]; consecutive stages have consecutive device ids.

        Raises:
            ConfigError: the machine has too few GPUs for this worker or for all workers.
        """
        from mxtrain.engine.backend import mx

        num_gpus = mx.context.num_gpus()
        local_rank = local_rank_among_gpus(num_gpus)
        replicas, stages = self.axes(count_own_gpus(num_gpus))
        kind = "gpu" if self.devices.startswith("gpu") or (self.devices == "auto" and num_gpus) else "cpu"
        first = 0
        if kind == "gpu":
            self._require_gpus(replicas * stages, num_gpus)
            # Contexts get numbers instead of hiding GPUs, which must happen before the import of MXNet, when nobody has
            # counted them.
            first = first_of(local_rank, replicas * stages, num_gpus, self.devices)
        # The stages of a replica are neighbours, because they exchange activations in each microbatch.
        first_ids = range(first, first + replicas * stages, stages)
        return [[mx.Context(kind, begin + stage) for stage in range(stages)] for begin in first_ids]

    def _require_gpus(self, num_needed: int, num_gpus: int) -> None:
        """Raises a `ConfigError` if MXNet sees fewer than `num_needed` GPUs, or cannot use those of the machine."""
        missing = num_needed > num_gpus
        gpus = find_gpus()
        reason = unsupported_reason(gpus)
        if reason and (missing or is_published_build()):
            hidden = [str(gpu.index) for gpu in gpus if not gpu.is_too_new]
            hide = f"hide the GPUs that are too new (CUDA_VISIBLE_DEVICES={','.join(hidden)}), " if hidden else ""
            raise ConfigError(f"parallel.devices={self.devices}: {reason}. What helps: {hide}{REMEDY}.")
        if missing:
            visible = f"only {num_gpus} GPU{'s' * (num_gpus > 1)}" if num_gpus else "no GPU"
            raise ConfigError(
                f"parallel.devices={self.devices}: MXNet sees {visible} here. Type "
                f"parallel.devices={f'gpu:{num_gpus}' if num_gpus else f'cpu:{num_needed}'}, or see what "
                "`python -m mxtrain doctor` says about CUDA."
            )

    def plan(self, devices: List[List[Context]], num_parts: int, is_alone: bool) -> Layout:
        """Returns the layout of a network that is not cut yet.

        Args:
            devices: devices as [replica][stage].
            num_parts: number of parts of a batch, for gradient accumulation.
            is_alone: True if no other worker has samples of a batch, and none can join.
        """
        num_microbatches = self.num_microbatches()
        has_one_shard = is_alone and len(devices) * num_microbatches == 1
        batch_norm = "per_device" if has_one_shard else self.batch_norm
        return Layout(devices, num_microbatches, num_parts, batch_norm, self.pipeline_schedule)

    def build(self, objective: Objective, grad_accumulation: int, workers: Optional[Store] = None) -> Strategy:
        """Builds the strategy for an initialised network.

        Args:
            objective: network, loss and metrics.
            grad_accumulation: number of parts of each batch whose gradients are summed.
            workers: store that connects the workers; None for a single worker.

        Raises:
            ConfigError: the network cannot be cut into that many stages.
        """
        from mxtrain.parallel.grid import Grid

        return Grid(objective, self.resolve_devices(), self, grad_accumulation, workers)


class Replicated(Parallel):
    """Base class of strategies with several copies of the network, each with its share of every batch."""

    replicas: Union[Auto, Positive] = "auto"
    """Number of copies of the network (data parallelism); auto: as many as the devices allow, 2 on a CPU."""


class Staged(Parallel):
    """Base class of strategies that place the layers of a network on several devices."""

    stages: Union[Auto, Positive] = "auto"
    """Devices that one copy of the network is spread over; auto: as many as there are, 2 on a CPU."""
    cut_before: List[str] = []
    """Layers that begin a stage, by structural name, e.g. [features.4], one fewer than stages; [] balances
    the estimated costs of operators, which are the same on every machine."""

    @property
    def stage_layers(self) -> List[str]:
        return self.cut_before


class Microbatched(Staged):
    """Base class of strategies whose stages compute different microbatches at the same time."""

    microbatches: Positive = 8
    """Number of microbatches into which a replica's share of a batch is divided."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Order of forward and backward passes: `gpipe`: all forwards, then all backwards; `1f1b`: a backward as soon as
    possible, so that a stage never holds more microbatches than there are later stages."""

    @property
    def pipeline_schedule(self) -> str:
        return self.schedule

    def num_microbatches(self) -> int:
        return self.microbatches


class Single(Parallel):
    """Training on one device."""


class Data(Replicated):
    """Data parallelism: a copy of the network on every device."""


class ModelParallel(Staged):
    """Model parallelism: one stage computes at a time. For networks that do not fit on one device."""


class Pipeline(Microbatched):
    """Pipeline parallelism: stages compute different microbatches at the same time."""


class Hybrid(Replicated, Microbatched):
    """Data and pipeline parallelism: several copies of the network, each of which is a pipeline."""


class Automatic(Single):
    """The fastest placement on this machine's devices, predicted from short measurements (`mxtrain plan`). `train` of
    one process chooses it before a run and records it; a resumed run keeps it."""

    is_chosen_before_run: ClassVar[bool] = True

    def axes(self, num_gpus: int = 0) -> Tuple[int, int]:
        return 1, 1  # until it is chosen, also if `devices` names several to choose from

    def build(self, objective: Objective, grad_accumulation: int, workers: Optional[Store] = None) -> Strategy:
        raise ConfigError(
            "parallel=auto: only `train` of a single run chooses a placement. Type `python -m mxtrain plan` with the "
            "same overrides, and the placement that it names."
        )


def fit_axes(parallel: Parallel, num_gpus: int) -> Tuple[int, int]:
    """Returns (replicas, stages) of a description; see `Parallel.axes`."""
    requested: Dict[str, Union[Auto, int]] = {
        "replicas": parallel.replicas if isinstance(parallel, Replicated) else 1,
        "stages": parallel.stages if isinstance(parallel, Staged) else 1,
    }
    if parallel.devices != "auto":
        total = int(parallel.devices.split(":")[1])
    elif "auto" in requested.values() and num_gpus:
        total = num_gpus
    else:
        axes = [CPU_DEVICES_PER_AXIS if value == "auto" else value for value in requested.values()]
        return axes[0], axes[1]
    if requested == {"replicas": "auto", "stages": "auto"}:
        # Prefer two replicas if each can have at least two stages.
        requested["replicas"] = CPU_DEVICES_PER_AXIS if total % CPU_DEVICES_PER_AXIS == 0 and total > 2 else 1
    product = 1
    for value in requested.values():
        product *= 1 if value == "auto" else value
    replicas, stages = (total // product if value == "auto" else value for value in requested.values())
    if replicas * stages != total:
        raise ConfigError(_misfit(parallel, requested, total))
    return replicas, stages


def _misfit(parallel: Parallel, requested: Dict[str, Union[int, Auto]], total: int) -> str:
    shown = {name: value for name, value in requested.items() if name in type(parallel).model_fields}
    if not shown:
        return (
            f"parallel.devices={parallel.devices}: parallel=single uses one device. Type parallel.devices=cpu:1 or "
            f"gpu:1, or parallel=data for {total} replicas, or parallel=pipeline for {total} stages."
        )
    fixed = [value for value in shown.values() if value != "auto"]
    product = 1
    for value in fixed:
        product *= value
    text = " x ".join(f"{value} {name}" for name, value in shown.items() if value != "auto")
    kind = parallel.devices.split(":")[0]
    if "auto" in shown.values():
        problem = f"{total} devices / {text} = {total / product:.4g}"
        num_devices = -(-total // product) * product
    else:
        problem = f"{text} = {product} devices, not {total}"
        num_devices = product
    return (
        f"parallel.devices={parallel.devices}: {problem}. Type parallel.devices={kind}:{num_devices}, or change "
        f"{' or '.join(f'parallel.{name}' for name in shown)}."
    )


def local_rank_among_gpus(num_gpus: int) -> LocalRank:
    """Returns the position of this worker among the workers that see the same GPUs.

    Args:
        num_gpus: number of GPUs that this process sees.
    """
    return LocalRank() if has_own_gpus(num_gpus) else find_local_rank()


def count_own_gpus(num_gpus: int) -> int:
    """Returns the number of GPUs that `auto` takes for this worker, of `num_gpus` that its process sees."""
    return share_of(local_rank_among_gpus(num_gpus), num_gpus)


def share_of(worker: LocalRank, num_gpus: int) -> int:
    """Returns the number of GPUs of one worker on a host.

    The result is 1 if there are fewer GPUs than workers; `first_of` then raises a helpful error.
    """
    return max(num_gpus // worker.size, min(num_gpus, 1))


def first_of(worker: LocalRank, count: int, num_gpus: int, devices: str) -> int:
    """Returns the index of a worker's first GPU; workers of a host take consecutive GPUs.

    Args:
        worker: rank of the worker on its host.
        count: number of GPUs that each worker needs.
        num_gpus: number of GPUs that this process sees.
        devices: `parallel.devices`, for the message.

    Raises:
        ConfigError: not enough GPUs are left for this worker.
    """
    first = worker.rank * count
    if first + count <= num_gpus:
        return first
    num_others = min(worker.rank, num_gpus // count)
    other_workers = [f"worker {rank} {_names(rank * count, count)}" for rank in range(num_others)]
    remaining = range(len(other_workers) * count, num_gpus)
    is_or_are = "is" if len(remaining) == 1 else "are"
    remaining_text = f"{_names(remaining.start, len(remaining))} {is_or_are}" if remaining else "none is"
    fitting = num_gpus // worker.size
    advice = f"parallel.devices=gpu:{fitting}, or " if fitting else ""
    raise ConfigError(
        f"parallel.devices={devices}: each worker computes on {_count(count)} of its own, and the {worker.size} "
        f"workers of this host see {_count(num_gpus)}: {', '.join(other_workers)} (counted on this host), and for "
        f"worker {worker.rank} {remaining_text} left. Type {advice}a smaller cluster.workers. If what starts them sets "
        f"CUDA_VISIBLE_DEVICES to other GPUs for each, let it set {OWN_GPUS}=1, too."
    )


def _names(first: int, count: int) -> str:
    return " and ".join(f"gpu({number})" for number in range(first, first + count))


def _count(number: int) -> str:
    return f"{number} GPU{'s' * (number != 1)}"
