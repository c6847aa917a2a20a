"""Builds a run from a description: the one place that knows how loaders, network, strategy, store and loop fit."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Collection, Dict, List, Mapping, Optional, Tuple, Union

from mxtrain.callback.record import RunRecord
from mxtrain.callback.status import StatusFile
from mxtrain.checkpoint import Checkpoint
from mxtrain.checkpoint.run_directory import held_lock
from mxtrain.checkpoint.sharing import receive_checkpoint, send_checkpoint
from mxtrain.cluster.stragglers import Stragglers
from mxtrain.dataset.base import Splits, open_splits
from mxtrain.dataset.signature import Signature
from mxtrain.description.groups import Description
from mxtrain.description.remedies import less_memory
from mxtrain.description.rules import batch_divisions
from mxtrain.description.sparse_tables import (
    PAYS_FROM,
    WORKERS_PAY_FROM,
    is_lazy,
    obstacle,
    sparse_from,
    sparse_samples,
)
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import ALONE, World
from mxtrain.metric.host import HostMetric
from mxtrain.metric.meter import Meter
from mxtrain.model.graph.id_inputs import tables_of
from mxtrain.model.graph.summary import graph_nodes, has_random_layers, summarize
from mxtrain.model.parameters import distinct_parameters, parameter_multipliers
from mxtrain.model.prepare import Prepared, prepare_network
from mxtrain.optimizer.ema import build_average
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.base import Layout, Objective, Strategy
from mxtrain.parallel.fence import can_be_fenced
from mxtrain.parallel.placement import placement_table
from mxtrain.runtime.gpu_memory import GpuMemoryMeter
from mxtrain.trainer import Trainer, resume
from mxtrain.trainer.cadence import Cadence
from mxtrain.trainer.estimate import Estimate, estimate_training
from mxtrain.trainer.evaluate import Evaluator
from mxtrain.trainer.loaders import build_data
from mxtrain.trainer.plan import Plan
from mxtrain.trainer.profiling import TIMELINE, Computation, Profiling
from mxtrain.trainer.resume import Beginning, begin
from mxtrain.trainer.runner import Runner
from mxtrain.trainer.saving import NoStore
from mxtrain.trainer.step import TrainingStep
from mxtrain.types import BY_HAND, Callback, CommandLine, RunInfo, Stateful

if TYPE_CHECKING:
    from mxnet import Context, gluon

    from mxtrain.annotations import Json, LossBlock
    from mxtrain.checkpoint.store import CheckpointStore
    from mxtrain.kvstore.remote_updater import RemoteUpdater

log = logging.getLogger("mxtrain")
FEW_SAMPLES = 10
"""With fewer samples a validation is warned of."""


@dataclass(frozen=True)
class Run:
    """A run that is ready to train."""

    runner: Runner
    info: RunInfo


def build_network(
    description: Description, signature: Signature, device: Context, elsewhere: bool = False, learns: bool = True
) -> gluon.Block:  # fmt: skip
    """The initialised, hybridized network.

    Args:
        elsewhere: servers hold the rows of its large tables.
        learns: else there is no memory for gradients.
    """
    task = description.task
    prepared = prepare_network(
        description.model, num_classes=task.num_classes(signature), input_shape=signature.shape,
        seed=description.trainer.seed, device=device, network=task.build_network(description, signature),
        output_shapes=[*task.output_shapes(description, signature), *description.model.state_shapes],
        output_names=task.output_names(signature), sparse_from=sparse_from(description),
        sparse_samples=sparse_samples(description), elsewhere=elsewhere, learns=learns,
    )  # fmt: skip
    say_dense_tables(description, prepared)
    if elsewhere:
        require_tables(prepared.network)
    if description.model.weights:
        for line in str(prepared.weights_report).splitlines():
            log.info("%s", line)
    return hybridize(prepared.network)


def say_dense_tables(description: Description, prepared: Prepared) -> None:
    """Says why the gradient of a large table holds all of its rows, where others would hold a batch's alone.

    Raises:
        ConfigError: that was asked for, and the network cannot.
    """
    against, _ = obstacle(description)
    if description.trainer.sparse_grad is True and prepared.dense_tables:
        raise ConfigError(
            f"trainer.sparse_grad=true: {prepared.dense_tables[0]}. Type trainer.sparse_grad=auto, or look ids up in "
            "an EmbeddingTable and nowhere else."
        )
    reasons = list(prepared.dense_tables)
    if against and description.trainer.sparse_grad == "auto":
        reasons += [against] * any(
            table.num_rows * table.units >= PAYS_FROM for table in tables_of(prepared.network)
        )  # fmt: skip
    for reason in reasons:
        log.info("the gradient of a table of embeddings holds all of its rows: %s", reason)


def require_tables(network: gluon.Block) -> None:
    """Raises: ConfigError: the network has no table whose rows servers could hold."""
    if not any(table.elsewhere for table in tables_of(network)):
        raise ConfigError(
            f"kvstore.tables=servers: no table of this network can have its rows on servers, of those with "
            f"{WORKERS_PAY_FROM:,} numbers or more. Type trainer.sparse_grad=true for smaller ones, or "
            "kvstore.tables=workers."
        )


def tables_elsewhere(network: gluon.Block) -> List[str]:
    """Structural names of the tables whose rows others hold."""
    weights = [table.weight for table in tables_of(network) if table.elsewhere]
    return [name for name, parameter in distinct_parameters(network).items() if any(parameter is w for w in weights)]


def hybridize(block: gluon.Block) -> gluon.Block:
    """Hybridizes with static memory; a plain gluon.Block only passes that on to its children. Shapes are static, too,
    where a `Fence` can mend what that breaks."""
    block.hybridize(static_alloc=True, static_shape=can_be_fenced(block))
    return block


def build_evaluator(description: Description, strategy: Strategy, signature: Signature) -> Evaluator:
    """Builds the evaluator, with the loss as it is outside of training: without smoothing and auxiliary outputs."""
    loss, meter = build_loss(description, signature, training=False)
    metrics = description.task.metrics(description, signature)
    on_host = {name: metric for name, metric in metrics.items() if isinstance(metric, HostMetric)}
    decode = description.task.build_decode_with(description, signature, strategy)
    return Evaluator(strategy, loss, meter, on_host, decode)


def build_loss(description: Description, signature: Signature, training: bool) -> Tuple[LossBlock, Meter]:
    """Builds the loss, hybridized, and the meter that sums it and the metrics up."""
    task = description.task
    loss = task.build_loss(description, signature, training)
    block = hybridize(loss)  # type: ignore[arg-type]  # it is a block
    meter = task.build_meter(description, signature, getattr(loss, "weighted", False), training)
    meter.least_weight = getattr(loss, "least_weight", 0.0)
    return block, meter


def build_objective(
    description: Description, network: gluon.Block, signature: Signature, world: World = ALONE
) -> Objective:
    """Builds the objective: network, loss and meter, which a strategy computes for a batch."""
    begin, end = world.share(description.dataset.samples_per_step)
    loss, meter = build_loss(description, signature, training=True)
    shape, trained = signature.shape, description.task.training_shapes(description, signature)
    predicted = None if trained == shape else shape
    return Objective(
        network, loss, meter, trained, max(end - begin, 1), description.amp, predicted, description.model.state_shapes,
        description.dataset.samples_per_step,
    )


def build_step(
    description: Description, network: gluon.Block, signature: Signature, steps_per_epoch: int, strategy: Strategy,
    store: Store, states: Optional[Mapping[str, Stateful]] = None,
) -> TrainingStep:  # fmt: skip
    """Builds the training step: updater and moving average around a placed network and a store.

    Args:
        description, network, signature, steps_per_epoch, strategy, store: of the run.
        states: by name, what else changes in training: in the loader.
    """
    trainer = description.trainer
    multipliers = parameter_multipliers(description.model, network)
    weights = {name: strategy.values[name] for name in strategy.trainable}
    if strategy.served is not None and not weights:
        raise ConfigError(
            "kvstore.tables=servers: nothing but tables is trained here, and workers are joined by their other "
            "parameters. Add a bias to the network, or type kvstore.tables=workers."
        )
    states = dict(states or {})
    updater: Union[Updater, RemoteUpdater]
    if store.updates:
        updater = store.build_updater(description.config, weights, multipliers, steps_per_epoch)
    else:
        updater = Updater(
            description.optimizer.build(steps_per_epoch), weights, multipliers, strategy.rows, is_lazy(description)
        )
    if strategy.served is not None:
        strategy.served.begin(store, description.config["optimizer"], multipliers, steps_per_epoch, trainer.seed)
        states["optimizer"] = strategy.served.with_updater(updater)
    draws = description.optimizer.draws_random or has_random_layers(network, signature.shape)
    return TrainingStep(
        strategy, store, updater,
        build_average(trainer.ema_decay, strategy.values, strategy.publish), trainer.clip_global_norm,
        trainer.seed if draws else None, description.amp.build_scaling(),
        {**description.task.build_states(strategy.objective.loss), **states},
    )  # fmt: skip


def total_steps_of(trainer: Trainer, steps_per_epoch: int) -> Optional[int]:
    """Steps of the whole run, None where only time limits it."""
    return trainer.max_epochs * steps_per_epoch if trainer.max_epochs else trainer.max_steps


def warnings_of(
    description: Description, num_samples: int, steps_per_epoch: int, meter: Meter, workers: Store
) -> List[str]:  # fmt: skip
    """Warnings about settings that are allowed but do something unexpected with this much data, a sentence each."""
    (setting, size), total_steps = description.dataset.batch_unit, total_steps_of(description.trainer, steps_per_epoch)
    found = description.rates.schedule.warnings(steps_per_epoch, total_steps)
    if setting == "batch_size" and size > num_samples:
        found.append(
            f"dataset.batch_size={size} is more than the {num_samples} training samples: a step takes them all, so an "
            "epoch is one step. Type dataset.batch_size=auto for more of them."
        )
    kind, _, count = description.parallel.devices.partition(":")
    if count == "1" and {"replicas", "stages"}.intersection(type(description.parallel).model_fields) == {"replicas"}:
        found.append(
            f"parallel.devices={kind}:1: one device trains as parallel=single does. Type parallel.devices={kind}:2 for "
            "two."
        )
    if meter.weighted and workers.updates and workers.world.size > 1:
        found.append(
            "this loss weighs samples, and workers of kvstore=dist_async wait for nobody: each divides its gradients "
            "by the weight of its own share of a batch, not of the whole batch"
        )
    return found


def say_estimate(description: Description, estimate: Optional[Estimate]) -> None:
    """Says about how much memory and time training takes, where that is much."""
    if estimate is None or not estimate.sentence:
        return
    if estimate.exceeds_memory:
        log.warning("%s, more than there is. %s", estimate.sentence, less_memory(description))
    else:
        log.info("%s", estimate.sentence)


def few_samples(splits: Splits) -> List[str]:
    """The warning about a validation split whose metrics say little, in a list; empty where it has enough samples."""
    count = len(splits.val)
    if count >= FEW_SAMPLES:
        return []
    had = "1 sample" if count == 1 else f"{count} samples"
    return [f"validation has {had}, so its metrics say little. Give more data, or more of them for validation."]


def build_plan(description: Description, steps_per_epoch: int, identity: Mapping[str, Json], direction: str) -> Plan:
    """Builds the plan: lengths, cadences and the schedule, in steps."""
    trainer, checkpoint = description.trainer, description.checkpoint
    total_steps = total_steps_of(trainer, steps_per_epoch)
    by_steps = trainer.val_interval_unit == "steps"
    return Plan(
        lr=description.rates.schedule.build(description.rates.lr, steps_per_epoch, total_steps),
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        max_steps=trainer.max_steps,
        max_time=trainer.max_time,
        log=Cadence(every_steps=trainer.log_interval),
        validate=Cadence(**{"every_steps" if by_steps else "every_epochs": trainer.val_interval}),
        save=checkpoint.cadence(),
        grace_s=description.cluster.grace,
        save_on_end=checkpoint.save_on_end,
        keeps_best=checkpoint.keep_top > 0,
        monitor=trainer.monitor,
        direction=direction,
        identity=identity,
        less_memory=less_memory(description),
    )


def build_run(
    description: Description, run_dir: Path, command: CommandLine = BY_HAND, world: World = ALONE,
    beginning: Optional[Beginning] = None,
) -> Run:  # fmt: skip
    """Everything that is needed to train in `run_dir`, continued from what it already holds.

    Args:
        run_dir: where it is kept.
        command: how it was started.
        world: of this worker. Only rank 0 reads and writes the run directory; the others are told what it holds.
        beginning: what `run_dir` holds, where that was looked at before.

    Raises:
        ConfigError, DataError, WeightsError, CheckpointError: nothing was started.
    """
    splits, signature = open_data(description)
    description = with_batch_size(description, len(splits.train))
    devices = place(description)
    device = devices[0][0]
    network = build_network(description, signature, device, description.kvstore.serves_tables)
    data = build_data(description, splits, signature, device, world)
    objective = build_objective(description, network, signature, world)
    meter = objective.meter
    # Here the other workers are waited for: mistakes in data and network are reported before. A ring gives new ranks.
    workers = description.kvstore.build(world)
    data.share(workers.world)
    world = workers.world
    checkpoints, checkpoint = find_checkpoint(description, run_dir, workers, beginning, tables_elsewhere(network))
    if checkpoint is not None:
        before = Signature.from_json(checkpoint.state["run"]["input"])
        description.dataset.require_same(signature, before, str(checkpoint.path))
        resume.require_same_batch(checkpoint, *description.dataset.batch_unit)
    parallel = resume.same_cut(description.parallel, checkpoint, len(devices[0]))
    strategy = parallel.build(objective, description.trainer.grad_accumulation, workers)
    data.train.look_ahead = strategy.look_ahead
    data.train.follow([strategy], workers)
    step = build_step(description, network, signature, len(data.train), strategy, workers, data.train.states)
    identity: Dict[str, Json] = {
        "description": description.config, "input": signature.to_json(), "cut_before": strategy.layout.cut_before,
        "batch_size": description.dataset.samples_per_step,
    }  # fmt: skip
    direction = meter.direction(description.trainer.monitor.split("/", 1)[1])
    plan = build_plan(description, len(data.train), identity, direction)
    is_first = world.rank == 0
    if is_first and description.dataset.sampler != "shuffle" and description.trainer.overfit_batches is None:
        log.info("dataset.sampler=%s: %s", description.dataset.sampler, data.train.sampler.summary)
    if is_first and description.rates.remark:
        log.info("%s", description.rates.remark)
    if is_first:
        found = warnings_of(description, data.train.total, len(data.train), meter, workers)
        for line in [*found, *few_samples(splits), *description.task.warnings(description, signature)]:
            log.warning("%s", line)
        say_estimate(description, estimate_training(objective, strategy.layout, len(data.train)))
    callbacks = build_callbacks(description, run_dir) if is_first else []
    profiling = build_profiling(description, network, strategy.layout, run_dir, len(data.train)) if is_first else None
    measured = replace(description, task=description.task.in_training())
    runner = Runner(
        step, plan, data, build_evaluator(measured, step.strategy, signature), meter, checkpoints,
        description.early_stopping, callbacks, profiling,
        Stragglers(description.cluster.balance == "speed", description.task.can_balance),
        GpuMemoryMeter(strategy.layout.gpus if is_first else []),
    )  # fmt: skip
    if checkpoint is not None:
        runner.restore(checkpoint)
    info = RunInfo(
        run_dir=run_dir, command=command, resumed_step=runner.state.step, network=network,
        **what_is_trained(description, plan, signature, network), placement_table=placement_table(strategy.layout),
    )  # fmt: skip
    return Run(runner, info)


def open_data(description: Description) -> Tuple[Splits, Signature]:
    """The opened dataset, and what of it enters the network."""
    splits = open_splits(description.dataset)
    signature = description.dataset.sign(splits, description.model)
    remark = description.dataset.remark(signature, splits)
    if remark:
        log.info("%s", remark)
    return splits, signature


def with_batch_size(description: Description, num_samples: int) -> Description:
    """The description with a batch for its number of training samples, where `dataset.batch_size` is auto."""
    divisor = math.prod(batch_divisions(description).values())
    dataset = description.dataset.for_size(num_samples, divisor)
    if dataset is not description.dataset and dataset.batch_unit[0] == "batch_size":
        log.info("dataset.batch_size=%d for %s training samples (auto)", dataset.samples_per_step, f"{num_samples:,}")
    return replace(description, dataset=dataset)


def place(description: Description) -> List[List[Context]]:
    """The devices, [replica][stage].

    Raises:
        ConfigError: there are fewer, or they do not compute in the precision: what `auto` means was not known before.
    """
    devices = description.parallel.place()
    reason = description.amp.reason_against(devices[0][0].device_type)
    if reason:
        raise ConfigError(reason)
    return devices


def what_is_trained(description: Description, plan: Plan, signature: Signature, network: gluon.Block) -> Dict[str, Any]:
    """The fields of `RunInfo` that describe what is trained, for callbacks and loggers."""
    return {
        "config": description.config, "total_steps": plan.total_steps, "steps_per_epoch": plan.steps_per_epoch,
        "input_shape": signature.shape, "metric_names": list(description.metric), "monitor": plan.monitor,
        "metric_signatures": description.task.in_training().metric_signatures(description, signature),
        "lr_scaling": description.rates.facts,
        "graph_nodes": lambda: graph_nodes(network, signature.shape),
        "model_table": summarize(network, signature.shape).table(), "predicts": description.task.predicts,
        "predict_inputs": description.task.predict_inputs,
    }  # fmt: skip


def find_checkpoint(
    description: Description, run_dir: Path, workers: Store, beginning: Optional[Beginning] = None,
    without: Collection[str] = (),
) -> Tuple[Union[CheckpointStore, NoStore], Optional[Checkpoint]]:  # fmt: skip
    """The store of checkpoints, and the one to continue from; all workers get that of rank 0, but for the parameters
    `without`, which it alone reads.

    Raises:
        CheckpointError: there is none where one was asked for, or it is of another description.
    """
    if workers.world.rank == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        beginning = beginning or begin(run_dir, description.checkpoint, description.config)
        store, found = beginning.store, beginning.checkpoint
        store.own(held_lock(run_dir), log.warning)
        if workers.world.size > 1:
            send_checkpoint(workers.broadcast, found, without)
            workers.broadcast(b"own" if found is not None and found.path.parent == store.directory else b"")
        return store, found
    checkpoint = receive_checkpoint(workers.broadcast)
    is_own = bool(workers.broadcast(None))
    return NoStore(checkpoint.path.parent if checkpoint is not None and is_own else None), checkpoint


def build_profiling(
    description: Description, network: gluon.Block, layout: Layout, run_dir: Path, steps_per_epoch: int
) -> Optional[Profiling]:
    """Builds the profiling of several devices, which wait for each other; of a single one only if it is asked for."""
    timeline = run_dir / TIMELINE if description.trainer.profile else None
    if layout.num_devices == 1 and timeline is None:
        return None
    computation = Computation(network, description.amp.dtype, description.amp.listed)
    return Profiling(layout, computation, timeline, log.warning, steps_per_epoch)


def build_callbacks(description: Description, run_dir: Path) -> List[Callback]:
    """Builds the callbacks, in the order in which they are notified."""
    # The status after the user's own callbacks: if one of them fails at the end, it can say so.
    own, loggers = ([spec.build() for spec in group.values()] for group in (description.callback, description.logger))
    lock = held_lock(run_dir)
    status = StatusFile(run_dir, lock.is_in_place) if lock else StatusFile(run_dir)
    return [*own, status, RunRecord(), *loggers]
