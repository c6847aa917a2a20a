"""Dry run: opens the data, builds the network, and estimates memory and time, without training.

It builds the parts of a run up to the updater, for worker 0. It starts no other process, so servers and connections are
not tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Optional, Tuple

from mxtrain.config.groups import Description
from mxtrain.kvstore.world import World
from mxtrain.model.graph.summary import summarize
from mxtrain.training.estimate import Estimate, estimate_training, shown_memory, shown_time
from mxtrain.training.loaders import build_data, open_data, with_batch_size
from mxtrain.training.network import build_network
from mxtrain.training.objective import build_objective
from mxtrain.training.plan import total_steps_of
from mxtrain.training.remarks import constant_metrics, few_samples
from mxtrain.training.remedies import less_memory
from mxtrain.training.teacher import teachers_of

if TYPE_CHECKING:
    from mxtrain.data.spec import Splits


@dataclass(frozen=True)
class DryRun:
    """Result of a dry run."""

    rows: List[Tuple[str, str]]
    """Pairs of a name and a value as text."""
    warnings: List[str]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows) + 2
        lines = [f"{name:<{width}}{value}" for name, value in self.rows]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def dry_run(description: Description) -> DryRun:
    """Builds everything of worker 0 up to the training step. Trains nothing and writes no run directory.

    MXNet is imported: the environment of the description must be set before this module is.

    Other workers and servers are not started.

    Raises:
        ConfigError, DataError, WeightsError: the run could not start.
    """
    from mxtrain.training.build import resolve_devices

    splits, signature = open_data(description)
    description = with_batch_size(description, len(splits.train))
    # Only a distributed store shares batches among workers.
    cluster = description.cluster.workers if description.kvstore.distributed else 1
    devices = resolve_devices(description)
    network = build_network(description, signature, devices[0][0])
    world = World(0, cluster)
    teacher = teachers_of(description, signature, devices[0][0]).get("distillation")
    data = build_data(description, splits, signature, devices[0][0], world, teacher)
    objective = build_objective(description, network, signature, world)
    strategy = description.parallel.build(objective, description.trainer.grad_accumulation)
    steps = len(data.train)
    estimate = estimate_training(objective, strategy.layout, steps, data.train.total, measures=True)
    total = total_steps_of(description.trainer, steps)
    workers = f"{cluster} workers x " if cluster > 1 else ""
    unit, size = description.dataset.batch_unit
    rows = [
        ("data", _samples(splits)),
        ("network", summarize(network, signature.shape).totals()),
        ("devices", workers + ", ".join(str(device) for replica in devices for device in replica)),
        (
            "steps",
            f"{steps:,} an epoch, {'until trainer.max_time' if total is None else f'{total:,} in all'}"
            f" (dataset.{unit}={size})",
        ),
        *_estimated(estimate, steps, total),
    ]
    warnings = [*few_samples(splits), *constant_metrics(description, signature)]
    if estimate is not None and estimate.exceeds_memory:
        warnings.append(f"training needs more memory than there is. {less_memory(description)}")
    return DryRun(rows, warnings)


def _samples(splits: Splits) -> str:
    counts = {"train": splits.train, "val": splits.val, "test": splits.test}
    return ", ".join(f"{name} {len(split):,}" for name, split in counts.items() if split)


def _estimated(estimate: Optional[Estimate], steps: int, total: Optional[int]) -> List[Tuple[str, str]]:
    if estimate is None:
        return [("estimate", "none: the network cannot be traced")]
    memory = shown_memory(estimate.total_bytes)
    rows = [("memory", f"about {memory}" + ("" if estimate.on_cpu else " on all devices, besides the weights"))]
    if estimate.epoch_s is not None:
        whole = "" if total is None else f", about {shown_time(estimate.epoch_s * total / steps)} in all"
        rows.append(("time", f"about {shown_time(estimate.epoch_s)} an epoch{whole}, without validation"))
    return rows
