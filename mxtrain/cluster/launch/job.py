"""Trains one run: the common part of single runs and jobs of a sweep.

Hydra calls `job` in this process, or in a worker process of its launcher, which imports this module.
"""

from __future__ import annotations

import logging
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Set, Union

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mxtrain.archive.run_files import STATUS_FILE
from mxtrain.archive.status import read_status_object
from mxtrain.callback.protocol import CommandLine, Result
from mxtrain.checkpoint import lock_run_directory
from mxtrain.cluster.launch import sweep
from mxtrain.cluster.launch.group import supervise
from mxtrain.cluster.launch.outcome import STOPS, JobFailed, Outcome, append_outcome, print_outcome
from mxtrain.cluster.launch.sweep_jobs import number_of
from mxtrain.cluster.member import find_world
from mxtrain.cluster.stopping import keep_termination, was_told_to_end
from mxtrain.composing import config_files
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import conf_folder_of, describe_here, prepare_environment
from mxtrain.config.groups import Description
from mxtrain.config.override_text import config_flags, key_of
from mxtrain.config.specs import name_of
from mxtrain.errors import (
    EXIT_CRASHED,
    EXIT_FINISHED,
    ConfigError,
    MxtrainError,
    WrongData,
    describe_out_of_memory,
    describe_unexpected,
)
from mxtrain.runtime import RuntimeReport, preloaded
from mxtrain.runtime.amx import ISA
from mxtrain.runtime.cores import usable_cores
from mxtrain.runtime.preloaded import is_mxnet_loaded
from mxtrain.terminal.program import command_line
from mxtrain.training.remedies import less_memory
from mxtrain.training.resume import (
    ResumePoint,
    already_finished_message,
    find_end,
    find_resume_point,
    move_to_previous,
    require_finished_on_same_data,
)

if TYPE_CHECKING:
    from mxtrain.training.build import BuiltRun
    from mxtrain.training.custom_steps import CustomSteps
    from mxtrain.types.annotations import JsonObject

log = logging.getLogger("mxtrain")
file_log = logging.getLogger("mxtrain.record")
"""Logs to train.log only, for messages that the console shows in another form."""
DECIDING_DATA = ("dataset", "task", "model", "experiment")
"""Groups whose overrides determine which data are read."""

_warned: Set[str] = set()
"""Warnings about the environment that this process has shown already."""

# A launcher's worker process composes before it calls a function of this module.
config_files.register_resolvers()


def train_sweep(composer: Composer, overrides: Sequence[str]) -> sweep.SweepEnd:
    """Checks all jobs of a sweep, and trains them.

    Args:
        composer: composes configurations from overrides.
        overrides: overrides, with several values for the swept settings.

    Raises:
        ConfigError: a job is invalid; no job was started.
    """
    return sweep.run_sweep(composer, overrides, job)


def job(config: DictConfig) -> Optional[float]:
    """Runs one job of a sweep in Hydra's directory; returns the best value of `trainer.monitor` for sweepers.

    Raises:
        JobFailed: the job failed, and the sweeper is not the basic one.
        KeyboardInterrupt: the sweep must not continue with the next job.
    """
    plain: Dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    settings = HydraConfig.get()
    command = command_of(settings)
    # Settings in which the jobs differ: `run_sweep` excludes all others from the names of their folders.
    fixed = set(settings.job.config.override_dirname.exclude_keys)
    swept = [key for key in map(key_of, command.overrides) if key not in fixed]
    run_dir = Path(settings.runtime.output_dir)
    number = number_of(run_dir, int(settings.job.num))
    outcome = sweep_job(plain, settings, run_dir, replace(command, job=number, swept=swept))
    if was_told_to_end(outcome.exit_code, outcome.cause) and sweep.SWEEP.is_running:
        raise KeyboardInterrupt
    if outcome.exit_code != EXIT_FINISHED and outcome.exit_code not in STOPS:
        if settings.sweeper["_target_"] == name_of(BasicSweeper):
            return None  # the basic sweeper would only print the same error again
        raise JobFailed(outcome.cause)
    return None if outcome.best is None else float(outcome.best["value"])


def sweep_job(config: Dict[str, Any], settings: DictConfig, run_dir: Path, command: CommandLine) -> Outcome:
    """Runs one job of a sweep under the lock of its directory, and appends its outcome to jobs.jsonl."""
    number, overrides = command.job, command.overrides
    print(f"\njob {number}: {' '.join(sweep.overrides_of(command.swept, overrides) or overrides)}", flush=True)
    limit_concurrent_job(config, settings)
    earlier_result = result = None
    try:
        with lock_run_directory(run_dir):
            earlier_result = sweep.finished_before(run_dir, config)
            description = shown_once(describe_here(config, conf_folder_of), overrides)
            if earlier_result is not None:
                checkpoint = find_resume_point(run_dir, description.checkpoint, config).own_checkpoint
                require_finished_on_same_data(checkpoint, description)
                result = earlier_result
            elif not description.kvstore.distributed:
                result = train_safely(description, run_dir, command)
        if result is None:
            # Several processes: outside of the lock, which their worker of rank 0 takes.
            with sweep.exported_job(command):
                result = train_as_group(description, run_dir, command.arguments)
    except MxtrainError as error:
        result = failure(error)
    outcome = Outcome.from_result(number, overrides, run_dir, result, earlier_result is not None, command.swept)
    print_outcome(outcome)
    append_outcome(Path(str(settings.sweep.dir)) / sweep.OUTCOMES, outcome)
    return outcome


def train_as_group(description: Description, run_dir: Path, arguments: Sequence[str]) -> Result:
    """Trains with several processes; returns the result that they left in status.json."""
    code = supervise(description, run_dir, arguments)
    status = read_status_object(run_dir) or {"state": "failed", "cause": "see above", "step": 0, "epoch": 0}
    fields = {name: status[name] for name in ("cause", "step", "epoch", "best", "checkpoint") if name in status}
    return Result(state=status["state"], exit_code=code, metrics=status.get("metrics") or {}, **fields)


def limit_concurrent_job(config: Dict[str, Any], settings: DictConfig) -> None:
    """Divides the cores among jobs that run side by side."""
    n_jobs = int(settings.launcher.get("n_jobs") or 1)
    if n_jobs != 1 and config["runtime"]["threads"] == "auto" and config["runtime"]["mode"] == "auto":
        cores = usable_cores()
        # Threads of oneDNN always spin at its own barriers, so jobs that run side by side need separate cores.
        config["runtime"]["threads"] = max(1, cores // n_jobs) if n_jobs > 0 else 1


def shown_once(description: Description, overrides: Sequence[str]) -> Description:
    """Returns the description of a job whose loggers omit the output that all jobs of the sweep share."""
    given_keys = set(map(key_of, overrides))
    loggers = {
        name: logger
        if given_keys.intersection(f"logger.{name}.{setting}" for setting in logger.shown_once)
        else logger.model_copy(update=dict(logger.shown_once))
        for name, logger in description.logger.items()
    }
    return replace(description, logger=loggers)


def train_safely(
    description: Description,
    run_dir: Path,
    command: CommandLine,
    resume_point: Optional[ResumePoint] = None,
) -> Result:
    """Trains; converts errors to results. Shows unexpected errors with their traceback.

    Args:
        description: description of the run.
        run_dir: directory of the run.
        command: command line of the run.
        resume_point: checkpoints in `run_dir`, if they have been looked up already.
    """
    try:
        with keep_termination():
            run = begin_run(description, run_dir, command, resume_point)
        return run if isinstance(run, Result) else run.runner.train(run.info)
    except MxtrainError as error:
        file_log.error("%s", error)
        result = failure(error)
        return replace(result, cause=f"{error} {data_check_hint(command)}") if isinstance(error, WrongData) else result
    except Exception as error:
        cause = describe_out_of_memory(error, less_memory(description)) or describe_unexpected(error)
        synchronize()
        result = Result("failed", EXIT_CRASHED, cause, step=0, epoch=0)
        if not (run_dir / STATUS_FILE).exists():
            from mxtrain.callback.status import StatusFile

            StatusFile(run_dir).on_end(result)
        return result


def synchronize() -> None:
    """Waits for MXNet: an error of pending operations would otherwise be printed when Python exits."""
    if "mxnet" in sys.modules:
        from mxtrain.engine.backend import nd

        with suppress(Exception):
            nd.waitall()


def data_check_hint(command: CommandLine) -> str:
    """Returns a sentence with the command that lists all problems of a run's data."""
    overrides = [word for word in command.overrides if key_of(word).split(".")[0] in DECIDING_DATA]
    words = " ".join(map(shlex.quote, [*command.flags, *overrides]))
    return f"`{command.program} data check {words}` lists all that is wrong with the data."


def failure(error: MxtrainError) -> Result:
    """Returns the result of a run that could not start."""
    return Result("failed", error.exit_code, str(error), step=0, epoch=0)


def begin_run(
    description: Description,
    run_dir: Path,
    command: CommandLine,
    resume_point: Optional[ResumePoint] = None,
    loop: Optional[CustomSteps] = None,
) -> Union[Result, BuiltRun]:
    """Builds a run, or returns the result of a run that has nothing left to do.

    Arguments as for `train_safely`. With a custom `loop` the run is always built.

    Raises:
        MxtrainError: nothing was started.
    """
    description.trainer.require_one_run("this")
    report = prepare_environment(description)  # Hydra may have changed it (hydra.job.env_set)
    world = find_world()
    if resume_point is None and world.rank == 0:
        if description.checkpoint.resume == "never":
            previous_files = move_to_previous(run_dir)
            if previous_files is not None:
                log.info("checkpoint.resume=never: the earlier run's files are now in %s", previous_files)
        resume_point = find_resume_point(run_dir, description.checkpoint, description.config)
    # Several workers decide this collectively, later.
    if resume_point is not None and loop is None and not description.kvstore.distributed:
        end = find_end(run_dir, description.config, resume_point.own_checkpoint)
        if end is not None:
            require_finished_on_same_data(resume_point.own_checkpoint, description)
            log.info("%s", already_finished_message(run_dir, end.cause, end.step))
            return end
    report_environment(report, description)
    preloaded.begin()
    # Imports MXNet: only from here on.
    from mxtrain.archive.provenance import write_meta
    from mxtrain.engine.backend import native_operators
    from mxtrain.training.build import build_run

    if description.runtime.operators is True and native_operators().path is None:
        reason = native_operators().why
        raise ConfigError(f"runtime.operators=true: {reason}. Fix this, or type runtime.operators=auto.")
    built = build_run(description, run_dir, command, world, resume_point, loop)
    if world.rank == 0:
        choices: JsonObject = {"choices": dict(command.choices)}
        write_meta(run_dir, description, report, {**built.facts, **choices})
    return built


def report_environment(report: RuntimeReport, description: Description) -> None:
    """Logs the settings that were made before MXNet is loaded, and the settings that have no effect."""
    if not is_mxnet_loaded():  # in a sweep, only for the first job of this process
        log.info("loading MXNet: %s", report.summary())
        for line in report.lines():
            file_log.info("%s", line)
    for line in report.slow:
        (file_log if line in _warned else log).warning("%s", line)  # in a sweep, only the first job shows it
        _warned.add(line)
    too_late = [f"{setting.variable}={setting.value}" for setting in report.settings if setting.source == "too late"]
    if too_late:
        message = (
            f"{', '.join(too_late)}: too late, as MXNet was imported before and read its settings then; the run may be "
            "slower. Set these variables before Python starts, or call mxtrain's functions before importing mxnet."
        )
        # In a notebook this applies to every run of the process, so warn only once.
        (file_log if message in _warned else log).warning("%s", message)
        _warned.add(message)
    if description.amp.dtype == "bfloat16" and not report.fast_bfloat16:
        reason = next((line for line in report.lines() if line.startswith(ISA)), "")
        log.warning("amp=bfloat16 is no faster than amp=off here. %s", reason)


def command_of(settings: DictConfig) -> CommandLine:
    """Returns the command line of this process, from Hydra's own node."""
    folders = [source.path for source in settings.runtime.config_sources if source.provider == "command-line"]
    overrides = list(settings.overrides.task)
    return command_line(flags=config_flags(folders), overrides=overrides, choices=choices_of(settings))


def choices_of(settings: DictConfig) -> Dict[str, str]:
    """Returns the chosen option of each group that takes one."""
    chosen = settings.runtime.choices.items()
    return {group: str(option) for group, option in chosen if option is not None and not group.startswith("hydra/")}
