"""Checks that settings of different groups fit each other. Each rule raises a ConfigError or returns None."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Tuple

from mxtrain.amp.spec import FULL
from mxtrain.config.options import option_classes
from mxtrain.config.sparse_tables import (
    check_served_tables,
    check_sparse_tables,
)
from mxtrain.errors import ConfigError, did_you_mean, nearest
from mxtrain.kvstore.world import WORKER
from mxtrain.logger.tracker import Tracker
from mxtrain.runtime.cores import usable_cores
from mxtrain.task.fit import learned_target_of, title_of
from mxtrain.task.needs import (
    CARRIED_ROWS,
    CARRIED_STATE,
    EQUAL_SHARES,
    FULL_PRECISION,
    GLOBAL_WEIGHT,
    NEEDS,
    WHOLE_BATCH,
    needs_of,
)
from mxtrain.types import MAX_COUNT

if TYPE_CHECKING:
    from mxtrain.config.description import Description

THREADS_PER_CORE = 4
"""A CPU device with more threads than this for each usable core is refused."""

HOROVOD_RANK = "HOROVOD_RANK"
ROLE_VARIABLES = ("DMLC_ROLE", HOROVOD_RANK)
"""Environment variables that make a process one of several."""

MXNET_NUMBERS = {
    **dict.fromkeys(
        (
            "MXNET_CPU_WORKER_NTHREADS",
            "MXNET_CPU_PRIORITY_NTHREADS",
            "MXNET_GPU_WORKER_NTHREADS",
            "MXNET_GPU_COPY_NTHREADS",
            "MXNET_CPU_TEMP_COPY",
            "MXNET_GPU_TEMP_COPY",
            "MXNET_CPU_PARALLEL_RAND_COPY",
            "MXNET_GPU_PARALLEL_RAND_COPY",
            "MXNET_KVSTORE_BIGARRAY_BOUND",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "MXNET_MP_WORKER_NTHREADS",
            "MXNET_MP_OPENCV_NUM_THREADS",
            "MXNET_OMP_MAX_THREADS",
            "MXNET_CPU_PARALLEL_SIZE",
            "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN",
            "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD",
            "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD",
            "MXNET_EXEC_INPLACE_GRAD_SUM_CAP",
            "MXNET_KVSTORE_REDUCTION_NTHREADS",
            "MXNET_KVSTORE_SLICE_THRESHOLD",
            "MXNET_MKLDNN_CACHE_NUM",
        ),
        0,
    ),
}
"""Integer variables of MXNet -> smallest allowed value. With other values MXNet ends the process or hangs."""
ENGINE_TYPE = "MXNET_ENGINE_TYPE"
ENGINES = ("ThreadedEnginePerDevice", "ThreadedEnginePooled", "ThreadedEngine", "NaiveEngine")

GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""Device files of the NVIDIA driver on Linux and on WSL. A process that can reach a GPU sees one of them."""


def check_stop_condition(description: Description) -> None:
    """Rejects a run without a limit of epochs, steps or time."""
    trainer = description.trainer
    if trainer.max_epochs is None and trainer.max_steps is None and trainer.max_time is None:
        raise ConfigError(
            "nothing limits the run: trainer.max_epochs, trainer.max_steps and trainer.max_time are all null. Set one."
        )


def check_schedule_end(description: Description) -> None:
    """Rejects a schedule over the whole run if its length is unknown: scaling or building the schedule fails."""
    trainer = description.trainer
    total = trainer.max_epochs or trainer.max_steps
    description.rates.schedule.build(description.rates.lr, 1, total)


def check_monitors(description: Description) -> None:
    """Rejects monitored values other than the loss and the metrics of the run."""
    allowed = [f"val/{name}" for name in ("loss", *description.metric)]
    allowed += [
        f"train/{name}"
        for name in ("loss", *description.metric)
        if name == "loss" or not description.metric[name].on_host
    ]
    monitors: List[Tuple[str, str]] = [("trainer.monitor", description.trainer.monitor)]
    if description.early_stopping.monitored:
        monitors.append(("early_stopping.monitor", description.early_stopping.monitored))
    if description.lr_scheduler.monitored:
        monitors.append(("lr_scheduler.monitor", description.lr_scheduler.monitored))
    monitors += [
        (f"callback.{name}.monitor", spec.monitored) for name, spec in description.callback.items() if spec.monitored
    ]
    target = learned_target_of(description.task, description.dataset)
    if target is None or not all(metric.takes.takes_target(target) for metric in description.metric.values()):
        return  # `check_task_fits` rejects the metric; the monitor may belong to the right one
    for path, monitor in monitors:
        if monitor not in allowed:
            name = monitor.rpartition("/")[2]
            near = [value for value in nearest(monitor, allowed, 3) if _is_near(name, value.rpartition("/")[2])]
            hint = f" Did you mean '{near[0]}'?" if near else ""
            # Values that a task measures by itself, such as interval_width, are no options.
            is_option = name not in description.metric and name in option_classes("metric")
            metric_to_add = name if is_option and not near else "NAME"
            raise ConfigError(
                f"{path}={monitor}: this run does not measure it.{hint} Allowed: {', '.join(allowed)}; "
                f"metric=[{','.join([*description.metric, metric_to_add])}] measures more."
            )
        require_direction(description, path, monitor)


def require_direction(description: Description, setting: str, value: str) -> str:
    """Returns "max" or "min": the direction in which a value of validations or training gets better.

    Args:
        description: description of a run that measures the value.
        setting: the setting that names it, for the message.
        value: its tag, e.g. "val/accuracy".

    Raises:
        ConfigError: its metric does not say it.
    """
    name = value.split("/", 1)[1]
    direction = "min" if name == "loss" else description.metric[name].better_direction
    if direction == "unknown":
        raise ConfigError(
            f"{setting}={value}: it is not known if smaller or larger values of '{name}' are better. Type "
            f"metric.{name}.better=min for an error, or metric.{name}.better=max for a score (in Python also "
            f'metric={{"{name}": (METRIC, "min")}}; in a class of your own: direction = "min").'
        )
    return direction


def _is_near(name: str, metric: str) -> bool:
    """Returns True if the spelling of a metric is near to a name.

    Both are given without `val/`: the common prefix would make any two of them similar.
    """
    return metric.startswith(name) or bool(nearest(name, [metric]))


def check_batch_divisions(description: Description) -> None:
    """Rejects batches with less than one sample per replica and accumulation part, or with unequal microbatches.

    Equal microbatches keep pipeline stages from waiting for a larger one. Only the last batch of an epoch may be
    smaller: its microbatches then differ by one sample, or are fewer.
    """
    setting, batch_size = description.dataset.batch_unit
    if setting != "batch_size" or description.dataset.batch_size == "auto":
        # With another unit (such as tokens) the number of samples varies, and a replica may get none. "auto" chooses a
        # divisible size.
        return
    workers, parts, replicas, microbatches = batch_divisions(description).values()
    shards = workers * parts * replicas * microbatches
    if shards == 1:
        return
    divisors = " / ".join(text for text, count in batch_divisions(description).items() if count > 1)
    division = f"dataset.batch_size={batch_size} samples / {divisors} = {batch_size / shards:.4g} samples"
    if batch_size < shards:
        raise ConfigError(f"{division}: less than one. The batch needs at least {shards} samples.")
    if microbatches > 1 and batch_size % shards:
        low, high = batch_size // shards * shards, -(-batch_size // shards) * shards
        share = batch_size // (workers * parts * replicas)
        candidates = [count for count in range(share, 0, -1) if batch_size % (workers * parts * replicas * count) == 0]
        near = min(candidates, key=lambda count: abs(count - microbatches), default=None)
        alternative = f", or parallel.microbatches={near}" if near else ""
        raise ConfigError(
            f"{division}: microbatches must be equal. Type dataset.batch_size={low} or {high}{alternative}."
        )


def batch_divisions(description: Description) -> Dict[str, int]:
    """Returns setting -> count for the numbers that divide a batch: workers, parts, replicas, microbatches."""
    workers, parts = description.cluster.workers, description.trainer.grad_accumulation
    replicas, _ = description.parallel.axes()
    microbatches = description.parallel.num_microbatches()
    return {
        f"cluster.workers={workers}": workers,
        f"trainer.grad_accumulation={parts}": parts,
        f"{replicas} replicas": replicas,
        f"parallel.microbatches={microbatches}": microbatches,
    }


def check_store_devices(description: Description) -> None:
    """Rejects a store that does not work with the devices, such as one for GPUs only with CPU devices."""
    reason = description.kvstore.unsupported_reason(description.parallel.devices, description.cluster.workers)
    if reason:
        raise ConfigError(reason)


def check_precision(description: Description) -> None:
    """Rejects a precision that the devices do not support, as far as this can be found without importing MXNet."""
    devices = description.parallel.devices
    # Device files instead of MXNet: the import takes more than a second, and this rule is checked before it.
    has_gpu = any(Path(file).exists() for file in GPU_FILES)
    kind = devices.split(":")[0] if devices != "auto" else "" if has_gpu else "cpu"
    reason = kind and description.amp.unsupported_reason(kind)
    if reason:
        raise ConfigError(reason)


def check_environment_role(description: Description) -> None:
    """Rejects a role or rank in the environment together with a store within one process.

    A launcher has set it, or it is left over from one. A server would wait for ever, and a worker of rank 1 would train
    without writing anything.
    """
    variable = next((name for name in ROLE_VARIABLES if name in os.environ), None)
    if variable is not None and not description.kvstore.distributed:
        store = "horovod" if variable == HOROVOD_RANK else "dist_sync"
        raise ConfigError(
            f"{variable}={os.environ[variable]} is set in the environment, which makes this process one of several, "
            f"but this kvstore stays within one process. Unset it (env -u {variable} ...), or type kvstore={store}."
        )


def check_environment_threads(description: Description) -> None:
    """Rejects an invalid OMP_NUM_THREADS, for which MXNet ends the process."""
    threads = os.environ.get("OMP_NUM_THREADS")
    # Only a value that MXNet will read matters: a configured number of threads replaces it.
    if description.runtime.threads == "auto" and threads and re.fullmatch("[1-9][0-9]{0,3}", threads) is None:
        raise ConfigError(
            f"OMP_NUM_THREADS={threads} in the environment: it must be a number from 1 on. Unset it, or type "
            "runtime.threads=2."
        )


def check_mxnet_variables(description: Description) -> None:
    """Rejects values of MXNET_... variables for which MXNet hangs or ends the process."""
    variables = {**os.environ, **description.runtime.env}
    for name, text in ((name, str(variables[name])) for name in (*MXNET_NUMBERS, ENGINE_TYPE) if name in variables):
        if name in MXNET_NUMBERS:
            least = MXNET_NUMBERS[name]
            is_valid = re.fullmatch("[0-9]{0,10}", text, re.ASCII) and least <= int(text or least) <= MAX_COUNT
            expected = "" if is_valid else f"a whole number from {least} on"
        else:
            expected = "" if text in ("", *ENGINES) else f"one of {', '.join(ENGINES)}"
        if expected and name in description.runtime.env:
            raise ConfigError(f"runtime.env.{name}={text}: must be {expected}. Leave it out, or correct it.")
        if expected:
            raise ConfigError(f"{name}={text} in the environment: must be {expected}. Unset it (env -u {name} ...).")


def check_cores(description: Description) -> None:
    """Rejects many more threads than cores. With 1000 threads on two cores no step finished within 15 minutes."""
    runtime, environ = description.runtime, os.environ
    if description.cluster.launcher != "local" and WORKER not in environ:
        return  # this is the supervisor; the workers on other hosts check their own cores
    thread_settings = {
        "runtime.threads": runtime.threads,
        "runtime.cpu_workers": runtime.cpu_workers,
        "runtime.env.OMP_NUM_THREADS": runtime.env.get("OMP_NUM_THREADS"),
    }
    if runtime.threads == "auto":
        thread_settings["OMP_NUM_THREADS"] = environ.get("OMP_NUM_THREADS")
    cores = usable_cores()
    for name, value in thread_settings.items():
        if str(value).isdecimal() and int(str(value)) > THREADS_PER_CORE * cores:
            remedy = f"{name}={cores}" if "." in name else f"runtime.threads={cores}, or unset it"
            raise ConfigError(
                f"{name}={value}: this process may use {cores} core{'s' * (cores > 1)}, and more than "
                f"{THREADS_PER_CORE} threads for each would keep each other from computing. Type {remedy}."
            )


def check_loss_scale(description: Description) -> None:
    """Rejects loss scaling with stores that may hide an overflow: all workers must see it, to skip the same steps."""
    if not description.amp.scales_loss:
        return
    store = description.kvstore
    if store.servers_update:
        raise ConfigError(
            f"amp=float16 with {store.setting}: servers would apply gradients that are scaled, or have overflowed. "
            "Type kvstore=dist_sync."
        )
    if store.compresses_by != "none":
        raise ConfigError(
            f"amp=float16 with kvstore.compression={store.compresses_by}: an overflow would be hidden in the residual. "
            "Type kvstore.compression=none."
        )


def check_store_workers(description: Description) -> None:
    """Rejects several workers with a store within one process, and settings that a distributed store lacks."""
    cluster, store = description.cluster, description.kvstore
    reason = cluster.unsupported_reason()
    if reason:
        raise ConfigError(reason)
    if not store.distributed:
        if cluster.workers > 1:
            raise ConfigError(
                f"cluster.workers={cluster.workers}: this kvstore stays within one process. Type kvstore=dist_sync."
            )
        for name, default in (("standby", False), ("memory_steps", None)):
            given = getattr(cluster, name)
            if given != default:
                raise ConfigError(
                    f"cluster.{name}={str(given).lower()}: this kvstore stays within one process, which nothing "
                    "restarts. Leave it out, or type kvstore=dist_sync."
                )
        return
    if store.van is None and cluster.servers != "auto":
        raise ConfigError(
            f"cluster.servers={cluster.servers}: the workers of this kvstore sum in a ring, without servers. Leave it "
            "out, or type kvstore=dist_sync."
        )
    if store.ring and cluster.launcher == "nodes":
        raise ConfigError(
            "cluster.launcher=nodes with kvstore=horovod: workers of several supervisors form no ring. Type "
            "kvstore=dist_sync, or start the workers by mpirun."
        )
    cause, remedy = store.independence
    if store.servers_update and cluster.balance_every is not None:
        raise ConfigError(
            f"cluster.balance_every={cluster.balance_every} with {cause}: workers are at different steps within an "
            "epoch, so their shares can change only at its beginning. Type cluster.balance_every=null."
        )
    if cluster.balance == "dynamic":
        _check_chunks(description)
    if cause and not store.servers_update and cluster.balance != "equal":
        raise ConfigError(
            f"cluster.balance={cluster.balance} with {cause}: no worker waits for a slower one in a step, so there is "
            f"nothing to balance. Type cluster.balance=equal, or {remedy}."
        )
    if cause and cluster.workers > 1 and description.parallel.batch_norm != "per_device":
        raise ConfigError(
            f"parallel.batch_norm={description.parallel.batch_norm} with {cause}: workers do not "
            "wait for each other, so there is no batch that they compute together. Type "
            f"parallel.batch_norm=per_device, or {remedy}."
        )


def _check_chunks(description: Description) -> None:
    """Rejects `cluster.balance=dynamic` with stores whose servers cannot note which chunks of the data are finished."""
    store = description.kvstore
    if not store.gives_chunks:
        raise ConfigError(
            f"cluster.balance=dynamic with {store.setting}: this store has no servers that give chunks of the data to "
            "workers. Type cluster.balance=speed, or kvstore=dist_async."
        )
    for setting, default in (("compression", "none"), ("tables", "workers")):
        given = getattr(store, setting)
        if given != default:
            raise ConfigError(
                f"cluster.balance=dynamic with kvstore.{setting}={given}: what a lost worker has not sent yet could "
                f"not be told from what it has. Type kvstore.{setting}={default}, or cluster.balance=speed."
            )


def check_local_sgd(description: Description) -> None:
    """Rejects local SGD together with state that differs between workers and is not synchronised."""
    store = description.kvstore
    if not store.independent_steps or store.servers_update:
        return
    cause, remedy = store.independence
    if description.trainer.ema_decay is not None:
        raise ConfigError(
            f"trainer.ema_decay={description.trainer.ema_decay} with {cause}: each worker would have a moving average "
            f"of its own weights. Type trainer.ema_decay=null, or {remedy}."
        )
    if description.amp.scales_loss:
        raise ConfigError(
            f"amp=float16 with {cause}: each worker would scale its loss by a number of its own. Type amp=bfloat16, or "
            f"{remedy}."
        )


def check_sharded_optimizer(description: Description) -> None:
    """Rejects optimizers that cannot update a part of the parameters as they would update all."""
    optimizer = description.optimizer
    if description.kvstore.shards_optimizer and not optimizer.shardable:
        reason = optimizer.dense_reason if optimizer.mxnet_name else "may keep numbers for all parameters together"
        raise ConfigError(
            f"kvstore.shard_optimizer=true with optimizer={optimizer.mxnet_name or 'your own'}: it {reason}, so "
            "workers that update different parameters would get other results. Type optimizer=adam or sgd, or "
            "kvstore.shard_optimizer=false."
        )


def check_actions(description: Description) -> None:
    """Rejects actions with stores for which the workers cannot agree on a change of the run, or cannot apply it."""
    actions = [f"callback.{name}" for name, spec in description.callback.items() if spec.acts]
    actions += ["lr_scheduler"] * (description.lr_scheduler.build_action() is not None)
    cause, remedy = description.kvstore.independence
    if actions and cause:
        raise ConfigError(
            f"{actions[0]} changes the run while it trains, and workers of {cause} do not wait for each other, so "
            f"there is no step after which all of them know the change. Type {remedy}."
        )
    if actions and description.kvstore.serves_tables:
        raise ConfigError(
            f"{actions[0]} changes the run while it trains, and the servers of kvstore.tables=servers update tables by "
            "themselves. Type kvstore.tables=workers."
        )
    for name, spec in description.callback.items():
        reason = spec.unsupported_reason(
            ema_decay=description.trainer.ema_decay,
            stops_early=bool(description.early_stopping.monitored),
            scales_loss=description.amp.scales_loss,
        )
        if reason:
            raise ConfigError(f"callback.{name}: {reason}.")


def check_teacher(description: Description) -> None:
    """Rejects distillation for tasks without outputs that a network could learn from a teacher."""
    spec, task = description.distillation, description.task
    if spec.teacher is None:
        unused = [name for name in type(spec).model_fields if getattr(spec, name) != getattr(type(spec)(), name)]
        if unused:
            raise ConfigError(
                f"distillation.{unused[0]} has no effect without a teacher. Type distillation.teacher=RUN, or leave it "
                "out."
            )
        return
    if not task.distils:
        raise ConfigError(
            f"distillation.teacher={spec.teacher}: {title_of(task)} has no outputs that a network could learn from "
            "another one's. Leave it out."
        )


def check_folds(description: Description) -> None:
    """Rejects folds of a dataset that cannot divide its training samples, or has no column to group them by."""
    trainer, dataset = description.trainer, description.dataset
    if trainer.folds is None:
        return
    if description.checkpoint.upload is not None and trainer.fold is None:
        raise ConfigError(
            f"checkpoint.upload={description.checkpoint.upload}: each fold is a run, and would need an address of its "
            "own. Leave checkpoint.upload out, or train single folds with trainer.fold=NUMBER and an address for each."
        )
    if not dataset.folds_by:
        raise ConfigError(
            f"trainer.folds={trainer.folds}: the training samples of {type(dataset).__name__} (task="
            f"{description.task.name}) cannot be divided into folds. Leave trainer.folds out."
        )
    if trainer.fold_groups is not None and dataset.folds_by != "columns":
        raise ConfigError(
            f"trainer.fold_groups={trainer.fold_groups}: {type(dataset).__name__} cannot group samples by a column. "
            "Leave it out."
        )


def check_metric_names(description: Description) -> None:
    """Rejects metrics whose name is another column of metrics.jsonl, such as loss."""
    reserved = {"loss", "step", "epoch", "split", "lr", "samples_per_s"}.intersection(description.metric)
    if reserved:
        raise ConfigError(f"metric.{sorted(reserved)[0]}: this name is taken in metrics.jsonl; choose another.")


def check_loggers(description: Description) -> None:
    """Rejects trackers without their packages, and two loggers with the same file: on resume each brings its file back
    to the checkpoint in its own format."""
    names: Dict[str, str] = {}
    for logger, spec in description.logger.items():
        file_name = spec.writes_to
        if isinstance(spec, Tracker):
            spec.require_usable(f"logger.{logger}")
            if file_name in names:
                other = f"logger.{names[file_name]}"
                raise ConfigError(f"logger.{logger}: {other} sends this run to {spec.service} already. Leave one out.")
        if file_name in names:
            raise ConfigError(
                f"logger.{logger}.file_name={file_name}: logger.{names[file_name]} writes this file. Choose another."
            )
        if file_name is not None:
            names[file_name] = logger


def check_task_fits(description: Description) -> None:
    """Checks dataset, model, loss and metrics with `Task.check`."""
    description.task.check(description)


def check_task_needs(description: Description) -> None:
    """Rejects a strategy, store or precision that a declared need of the task excludes."""
    task = description.task
    name = title_of(task)
    for need in needs_of([*task.needs, *description.loss.needs], description.model):
        if need not in NEEDS:
            raise ConfigError(
                f"{name} needs '{need}', which is no known requirement.{did_you_mean(need, NEEDS)} Allowed: "
                f"{', '.join(NEEDS)}."
            )
        conflict, remedy = _obstacle(description, need)
        if conflict:
            raise ConfigError(f"{conflict}: {name} needs {need}: {NEEDS[need]}. Type {remedy}.")


def _obstacle(description: Description, need: str) -> Tuple[str, str]:
    """Returns the setting that conflicts with a need of the task, and what to type instead; or two empty strings."""
    store, workers = description.kvstore, description.cluster.workers
    cause, remedy = store.independence
    if need == CARRIED_ROWS and workers > 1 and (cause or store.ring):
        # Independent steps end on no two workers at once; in a ring, rows are lost with a worker that leaves.
        return f"{cause or store.setting} with cluster.workers={workers}", remedy or "kvstore=dist_sync"
    if need == CARRIED_ROWS and description.cluster.balance_every is not None:
        # A row must stay on its worker within an epoch, because its state is there.
        return f"cluster.balance_every={description.cluster.balance_every}", "cluster.balance_every=null"
    if need in (WHOLE_BATCH, CARRIED_STATE):
        divisions = [text for text, count in batch_divisions(description).items() if count > 1]
        return " and ".join(divisions), "parallel=single kvstore=local cluster.workers=1 trainer.grad_accumulation=1"
    if need == GLOBAL_WEIGHT and cause and workers > 1:
        return f"{cause} with cluster.workers={workers}", remedy
    if need == EQUAL_SHARES and description.cluster.balance != "equal":
        return f"cluster.balance={description.cluster.balance}", "cluster.balance=equal"
    if need == FULL_PRECISION and description.amp.dtype != FULL.dtype:
        return f"amp={description.amp.dtype}", "amp=off"
    return "", ""


RULES = (
    check_stop_condition,
    check_schedule_end,
    check_monitors,
    check_batch_divisions,
    check_store_devices,
    check_precision,
    check_environment_role,
    check_environment_threads,
    check_mxnet_variables,
    check_cores,
    check_loss_scale,
    check_store_workers,
    check_local_sgd,
    check_sharded_optimizer,
    check_actions,
    check_teacher,
    check_folds,
    check_metric_names,
    check_loggers,
    check_sparse_tables,
    check_served_tables,
    check_task_fits,
    check_task_needs,
)
"""All rules, in the order in which they are checked."""

ENVIRONMENT_RULES = (
    check_environment_threads,
    check_mxnet_variables,
    check_cores,
)
"""The rules that also check the environment and the cores of this process."""
