"""Builds a run from a description. Only this module connects loaders, network, strategy, store and loop.

Each part is built by another module of `training`; this module only determines their order. Data are opened and the
network is built before the connection to the other workers, which may take minutes, so that mistakes in them are
reported at once. Loaders therefore receive the network not when they are built, but with each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Union

from mxtrain.callback.protocol import BY_HAND, CommandLine, RunInfo
from mxtrain.checkpoint.memory import build_memory_state
from mxtrain.cluster.joining import connect_store
from mxtrain.cluster.stopping import SignalStop
from mxtrain.cluster.stragglers import Stragglers
from mxtrain.config.groups import Description
from mxtrain.config.sparse_tables import is_lazy
from mxtrain.data.fingerprint import fingerprint
from mxtrain.data.identity import identify
from mxtrain.data.signature import Signature, signature_of
from mxtrain.data.spec import samples_per_step
from mxtrain.errors import ConfigError, MxtrainError
from mxtrain.kvstore.joined_store import JoinedStore
from mxtrain.kvstore.sharded_updater import ShardedUpdater
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import ALONE, World
from mxtrain.model.graph.summary import graph_nodes, has_random_layers, summarize
from mxtrain.model.parameters import parameter_multipliers
from mxtrain.optimizer.ema import build_average
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.base import Strategy, TableUpdates
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.planner import placement_table
from mxtrain.runtime.gpu_memory import GpuMemoryMeter
from mxtrain.task.fit import require_same_learned_names
from mxtrain.task.needs import EQUAL_SHARES
from mxtrain.task.threshold import ChoosingTask, saved_choices
from mxtrain.training import resume
from mxtrain.training.actions import build_actions
from mxtrain.training.batch_size import (
    agree_batch_size,
    fit_batch_size,
    is_automatic,
    with_fixed_batch_size,
)
from mxtrain.training.callback_list import CallbackList, build_callbacks
from mxtrain.training.context import Monitors, RunContext
from mxtrain.training.loaders import build_data, open_data, with_batch_size
from mxtrain.training.network import build_network, remote_tables
from mxtrain.training.objective import build_evaluator, build_objective
from mxtrain.training.plan import Plan, RunData, build_plan
from mxtrain.training.profiling import build_profiling
from mxtrain.training.remarks import log_remarks
from mxtrain.training.resume import ResumePoint
from mxtrain.training.runner import Runner
from mxtrain.training.saving import NoStore, Saving
from mxtrain.training.step import TrainingStep
from mxtrain.training.teacher import teachers_of
from mxtrain.types import Stateful

if TYPE_CHECKING:
    from mxnet import Context, gluon
    from mxnet.ndarray import NDArray

    from mxtrain.checkpoint import Checkpoint
    from mxtrain.checkpoint.store import CheckpointStore
    from mxtrain.data.loading.samples import Splits
    from mxtrain.kvstore.remote_updater import RemoteUpdater
    from mxtrain.training.actions import ActionList
    from mxtrain.training.custom_steps import CustomSteps
    from mxtrain.training.evaluate import Evaluator
    from mxtrain.training.teacher import Teacher
    from mxtrain.types.annotations import Json, JsonObject


@dataclass(frozen=True)
class BuiltRun:
    """A run that is ready to train."""

    runner: Runner
    info: RunInfo
    facts: Mapping[str, Json]
    """Facts for meta.json that the description does not contain; worker 0 writes them."""


def build_step(
    description: Description,
    network: gluon.Block,
    signature: Signature,
    steps_per_epoch: int,
    strategy: Strategy,
    store: Store,
    states: Optional[Mapping[str, Stateful]] = None,
) -> TrainingStep:
    """Builds the training step: updater and moving average around a placed network and a store.

    Args:
        description: description of the run.
        network: initialised network.
        signature: signature of the network.
        steps_per_epoch: steps in an epoch.
        strategy: strategy that has placed the network.
        store: store that reduces gradients.
        states: name -> further state that training changes, such as that of the loader.
    """
    trainer = description.trainer
    multipliers = parameter_multipliers(description.model, network)
    weights = {name: strategy.values[name] for name in strategy.trainable}

    def build_local(trained: Mapping[str, NDArray]) -> Updater:
        optimizer = description.optimizer.build(steps_per_epoch)
        return Updater(optimizer, trained, multipliers, strategy.rows, is_lazy(description))

    updater: Union[Updater, RemoteUpdater, ShardedUpdater]
    if store.servers_update:
        updater = store.build_updater(description.config, weights, multipliers, steps_per_epoch)
    elif isinstance(store, JoinedStore) and store.shards_optimizer:
        updater = ShardedUpdater(store, build_local, weights, strategy.reductions)
    else:
        updater = build_local(weights)
    table_updates = TableUpdates(description.config["optimizer"], multipliers, steps_per_epoch, trainer.seed)
    strategy.remote.connect(store, table_updates)
    draws = description.optimizer.draws_random or has_random_layers(network, signature.shape)
    return TrainingStep(
        strategy,
        store,
        updater,
        build_average(trainer.ema_decay, strategy.values, strategy.publish),
        trainer.clip_global_norm,
        trainer.seed if draws else None,
        description.amp.build_scaling(),
        {**description.task.build_states(strategy.objective.loss), **(states or {})},
    )


def build_run(
    description: Description,
    run_dir: Path,
    command: CommandLine = BY_HAND,
    world: World = ALONE,
    resume_point: Optional[ResumePoint] = None,
    loop: Optional[CustomSteps] = None,
) -> BuiltRun:
    """Builds everything that is needed to train in `run_dir`, and continues from its last checkpoint.

    Args:
        description: description of the run.
        run_dir: run directory.
        command: command that started the run.
        world: world of this worker. Only rank 0 reads and writes the run directory, and informs the others.
        resume_point: checkpoint to continue from, if the caller has already looked it up.
        loop: custom loop of the user, which takes the steps.

    Raises:
        ConfigError, DataError, WeightsError, CheckpointError: the run cannot start; nothing has been written.
    """
    if resume_point is None and world.rank == 0:
        resume_point = resume.find_resume_point(run_dir, description.checkpoint, description.config)
    inputs = open_inputs(description, world, resume_point)
    data, objective = inputs.build_loaders(world), inputs.build_objective(world)
    # Connecting waits for the other workers, so the data is opened and the network built first: an error in them is
    # reported at once. A ring of workers may assign new ranks.
    workers = connect_store(description.kvstore, world, description.cluster.start_timeout)
    workers.balance_every = description.cluster.balance_every
    workers.divides_data = description.cluster.balance == "dynamic"
    if workers.world != world:
        data.share(workers.world)
    world = workers.world
    checkpoints, checkpoint = resume.open_checkpoints(
        inputs.description, run_dir, workers, resume_point, remote_tables(inputs.network)
    )
    if checkpoint is None and inputs.missing is not None:
        raise inputs.missing
    if inputs.chooses_batch:
        own_batch_size = samples_per_step(inputs.description.dataset)
        batch_size = agree_batch_size(own_batch_size, workers, checkpoint)
        # Another worker has less memory. Loaders and objective contain the batch size, so they are built again.
        if batch_size != own_batch_size:
            inputs = inputs.with_batch_size(batch_size)
            data, objective = inputs.build_loaders(world), inputs.build_objective(world)
    description, signature, network = inputs.description, inputs.signature, inputs.network
    actions = build_actions(description)
    if checkpoint is not None:
        # Checked first, because its message names the cause of differences in columns, vocabularies or classes.
        if inputs.data_identity:
            resume.require_same_data(checkpoint, description.config, inputs.data_identity["data"])
        require_compatible(checkpoint, description, signature, actions)
    # A resumed run keeps its cut: with another one, oneDNN chooses other memory layouts and the last bits change.
    parallel = resume.same_cut(description.parallel, checkpoint, len(inputs.devices[0]))
    strategy = parallel.build(objective, description.trainer.grad_accumulation, workers)
    build = build_step if loop is None else loop.build_step
    states = {**data.train.states, **inputs.teachers}
    step = build(description, network, signature, len(data.train), strategy, workers, states)
    identity = build_identity(inputs, strategy)
    direction = objective.meter.direction(description.trainer.monitor.split("/", 1)[1])
    origin = resume.epoch_origin_of(checkpoint, samples_per_step(description.dataset), len(data.train))
    plan = build_plan(description, len(data.train), identity, direction, origin)
    if world.rank == 0:
        log_remarks(description, inputs.splits, signature, data.train, objective, strategy.layout, workers)
    context = build_context(description, step, plan, data, signature, actions, checkpoints, run_dir)
    monitors = build_monitors(description, network, step, plan, run_dir)
    meter = objective.meter
    if loop is not None:
        context, meter = loop.prepare(context, meter)
    runner = Runner(context, meter, description.early_stopping, monitors, checkpoint)
    info = RunInfo(
        run_dir=run_dir,
        command=command,
        resumed_step=runner.state.step,
        network=network,
        epoch_origin=plan.epoch_origin,
        **run_info_fields(description, plan, signature, network),
        placement_table=placement_table(strategy.layout),
    )
    facts: Dict[str, Json] = {
        "steps_per_epoch": plan.steps_per_epoch,
        "resumed_step": info.resumed_step,
        "data": inputs.data_fingerprint,
    }
    return BuiltRun(runner, info, facts)


def build_identity(inputs: RunInputs, strategy: Strategy) -> Dict[str, Json]:
    """Returns facts that each checkpoint stores, so that a resumed run can check that it continues the same run."""
    return {
        "description": inputs.description.config,
        "input": inputs.signature.to_json(),
        # Saved, so that another version of mxtrain or another type of device continues with the same cut.
        "cut_before": strategy.layout.cut_before,
        # The number that auto has chosen: a resumed run must not choose again by the memory of another machine.
        "batch_size": samples_per_step(inputs.description.dataset),
        **inputs.data_identity,
    }


@dataclass(frozen=True)
class RunInputs:
    """Data, network and other parts of a run that a worker builds before it connects to the other workers."""

    description: Description
    """Description with a number as the batch size."""
    splits: Splits
    signature: Signature
    devices: List[List[Context]]
    """Devices, [replica][stage]."""
    network: gluon.Block
    """Network with initial values."""
    teachers: Dict[str, Teacher]
    """Networks whose outputs this run learns from, by the name of their setting."""
    data_fingerprint: JsonObject
    """Fingerprint of the dataset for meta.json; empty on workers other than rank 0."""
    data_identity: JsonObject
    """Identity of the data, as `data`, for checkpoints; empty on workers other than rank 0, which write none."""
    chooses_batch: bool
    """True if the batch size was chosen by the memory of the device; all workers must then agree on one."""
    missing: Optional[MxtrainError] = None
    """Error in a file of initial values, which a worker other than rank 0 raises unless a checkpoint replaces them."""

    def build_loaders(self, world: World) -> RunData:
        """Builds the loaders of all splits."""
        teacher = self.teachers.get("distillation")
        return build_data(self.description, self.splits, self.signature, self.devices[0][0], world, teacher)

    def build_objective(self, world: World) -> Objective:
        """Builds network, loss and meter."""
        return build_objective(self.description, self.network, self.signature, world)

    def with_batch_size(self, batch_size: int) -> RunInputs:
        """Returns the same inputs for another global batch size."""
        return replace(self, description=with_fixed_batch_size(self.description, batch_size))


def open_inputs(description: Description, world: World, resume_point: Optional[ResumePoint] = None) -> RunInputs:
    """Opens the data, builds the network and chooses an automatic batch size.

    Args:
        description: description of the run.
        world: world of this worker.
        resume_point: checkpoint to continue from; None if it is not known yet.

    Raises:
        ConfigError, DataError, WeightsError, CheckpointError: data, devices, weights or a teacher cannot be used.
    """
    if resume_point is not None and resume_point.checkpoint is not None:
        description = replace(description, model=description.model.for_resumed_weights())
    missing: Optional[MxtrainError] = None
    try:
        description.model.require_files()
    except MxtrainError as error:
        if world.rank == 0:
            raise
        # Only rank 0 knows whether a checkpoint replaces the initial values.
        missing, description = error, replace(description, model=description.model.for_resumed_weights())
    splits, signature = open_data(description)
    # Computed before anything is cached in the splits, because `reproduce` compares it with newly opened splits.
    data_fingerprint = fingerprint(description.dataset, splits) if world.rank == 0 else {}
    data_identity: Dict[str, Json] = {}
    if world.rank == 0:
        data_identity["data"] = identify(description.dataset, splits, data_fingerprint)
    chooses_batch = is_automatic(description)
    # An automatic batch size depends on the opened splits, and must be known before the learning rate is scaled by it.
    description = with_batch_size(description, len(splits.train))
    devices = resolve_devices(description)
    device = devices[0][0]
    network = build_network(description, signature, device, description.kvstore.serves_tables)
    if chooses_batch:
        description = with_fixed_batch_size(description, fit_batch_size(description, network, signature, devices))
    teachers = open_teachers(description, signature, network, device)
    return RunInputs(
        description,
        splits,
        signature,
        devices,
        network,
        teachers,
        data_fingerprint,
        data_identity,
        chooses_batch,
        missing,
    )


def build_context(
    description: Description,
    step: TrainingStep,
    plan: Plan,
    data: RunData,
    signature: Signature,
    actions: ActionList,
    checkpoints: Union[CheckpointStore, NoStore],
    run_dir: Path,
) -> RunContext:
    """Builds the objects that the loop, the validations and the end of a run share, and binds the actions to them.

    Args:
        description: description of the run.
        step: training step.
        plan: lengths and cadences of the run.
        data: loaders.
        signature: signature of the network.
        actions: callbacks that change the run.
        checkpoints: store of the checkpoints.
        run_dir: run directory. Only rank 0 has callbacks, which write there.
    """
    is_first = step.store.world.rank == 0
    callbacks = CallbackList(build_callbacks(description, run_dir) if is_first else [])
    direction = step.strategy.objective.meter.direction
    actions.bind(step, data, plan, description.rates.lr, direction, lambda text: callbacks.notify("on_message", text))
    if actions:
        step.add_states({"actions": actions, "gradient_sum": step.gradient_sum})
    measured = replace(description, task=description.task.in_training())
    evaluator = build_evaluator(measured, step.strategy, signature)

    def build_test_evaluator(states: Optional[JsonObject]) -> Evaluator:
        if not isinstance(measured.task, ChoosingTask):
            return evaluator
        if states is None:
            states = saved_choices(measured.task)
        return build_evaluator(replace(measured, task=measured.task.restored(states)), step.strategy, signature)

    return RunContext(
        step,
        plan,
        data,
        evaluator,
        build_test_evaluator,
        Saving(checkpoints, callbacks, build_memory_state() if is_first else None),
        SignalStop(plan.grace_s, description.checkpoint.on_signal == "stop", description.cluster.notice),
        callbacks,
        actions,
    )


def build_monitors(
    description: Description, network: gluon.Block, step: TrainingStep, plan: Plan, run_dir: Path
) -> Monitors:
    """Builds the objects that observe devices and workers; only rank 0 profiles and reads the memory of GPUs."""
    layout, is_first = step.strategy.layout, step.store.world.rank == 0
    return Monitors(
        build_profiling(description, network, layout, run_dir, plan.steps_per_epoch) if is_first else None,
        Stragglers(description.cluster.balance == "speed", EQUAL_SHARES not in description.task.needs),
        GpuMemoryMeter(layout.gpus if is_first else []),
    )


def open_teachers(
    description: Description, signature: Signature, network: gluon.Block, device: Context
) -> Dict[str, Teacher]:
    """Opens the networks whose outputs this run learns from, by the name of their setting.

    Raises:
        CheckpointError: a teacher cannot be loaded.
        ConfigError: a teacher cannot teach this network.
    """
    teachers = teachers_of(description, signature, device)
    if "distillation" in teachers:
        shape = description.task.training_shapes(description, signature)
        teachers["distillation"].require_same_maps(network, shape, list(description.distillation.features))
    return teachers


def require_compatible(
    checkpoint: Checkpoint, description: Description, signature: Signature, actions: ActionList
) -> None:
    """Checks that data, batches and actions of a checkpoint are those of this run.

    Raises:
        CheckpointError, DataError: they differ.
    """
    before = signature_of(checkpoint, type(signature))
    description.dataset.check_compatible(signature, before, str(checkpoint.path))
    require_same_learned_names(before, signature, str(checkpoint.path))
    actions.require_same(checkpoint)
    resume.require_same_batch(checkpoint, *description.dataset.batch_unit, description.config)


def resolve_devices(description: Description) -> List[List[Context]]:
    """Returns the devices, [replica][stage].

    Raises:
        ConfigError: there are too few devices, or they do not support the precision. With `parallel.devices=auto` this
            is not known earlier.
    """
    devices = description.parallel.resolve_devices()
    reason = description.amp.unsupported_reason(devices[0][0].device_type)
    if reason:
        raise ConfigError(reason)
    return devices


def run_info_fields(description: Description, plan: Plan, signature: Signature, network: gluon.Block) -> Dict[str, Any]:
    """Returns the fields of `RunInfo` that describe the network and its data, for callbacks and loggers."""
    return {
        "config": description.config,
        "total_steps": plan.total_steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "input_shape": signature.shape,
        "metric_names": list(description.metric),
        "monitor": plan.monitor,
        "direction": plan.direction,
        "metric_signatures": description.task.in_training().metric_signatures(description, signature),
        "lr_scaling": description.rates.facts,
        "graph_nodes": lambda: graph_nodes(network, signature.shape),
        "model_table": summarize(network, signature.shape).table(),
        "predicts": description.task.predicts,
        "predict_inputs": description.task.prediction_format().inputs,
    }
