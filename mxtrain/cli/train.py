"""`mxtrain train`: checks everything first, then lets Hydra make the run directory and call the job."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mxtrain import runtime
from mxtrain.cli import arguments as given_arguments
from mxtrain.cli import sweep
from mxtrain.cli.compose import CONFIG_NAME, Composed, Composer
from mxtrain.cli.hydra_settings import hydra_settings_at_fault
from mxtrain.cli.outcome import STOPS, JobFailed, Outcome, append_outcome, exit_code_of, print_cause, print_outcome
from mxtrain.cli.program import command_line
from mxtrain.cli.unstarted import Before
from mxtrain.cluster.member import HOST_WORKERS, find_world
from mxtrain.description.groups import Description, build_group, describe
from mxtrain.description.override_text import key_of, quote
from mxtrain.errors import (
    EXIT_BAD_INPUT,
    EXIT_CRASHED,
    EXIT_FINISHED,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    ConfigError,
    MxtrainError,
    unforeseen,
)
from mxtrain.runtime import huge_pages
from mxtrain.runtime.amx import ISA
from mxtrain.runtime.cores import usable_cores
from mxtrain.types import CommandLine, Result

log = logging.getLogger("mxtrain")
file_log = logging.getLogger("mxtrain.record")
"""Goes to train.log only: the person who watches sees it otherwise."""

_outcomes: List[Outcome] = []
"""Of the single run of this process."""


def run(arguments: Sequence[str]) -> int:
    """Trains, or runs a sweep, or prints what a flag asks for; returns the exit code."""
    given = given_arguments.parse(arguments)
    if given.shows is not None:
        from mxtrain.cli.show import show

        return show(given)
    given_arguments.no_positionals(given, "train")
    with Composer(given.config_dirs) as composer:
        if given.multirun or asks_for_sweep(composer, given.overrides):
            return run_sweep(composer, given.overrides)
        composed = compose_and_check(composer, given.overrides)
        if composed.hydra.mode is not None and composed.hydra.mode.name == "MULTIRUN":
            return run_sweep(composer, given.overrides)
        return run_once(composed, config_flags(given.config_dirs))


def asks_for_sweep(composer: Composer, overrides: Sequence[str]) -> bool:
    """Whether the overrides say what `-m` says."""
    return any(o.key_or_group == "hydra.mode" and str(o.value()) == "MULTIRUN" for o in composer.parse(overrides))


def run_once(composed: Composed, flags: Sequence[str]) -> int:
    """Trains in `hydra.run.dir`, as one process or as the supervisor or a member of several."""
    description = check(composed)
    from mxtrain.cli.group import find_role, supervise
    from mxtrain.cli.serve import serve

    member = find_role(description)
    if member is not None and member.role != "worker":
        return serve(member.role, "train", [*flags, *composed.overrides])
    if member is not None and member.world.rank > 0:
        return run_follower(composed)
    run_dir = composed.run_dir
    before = Before(run_dir, str(composed.hydra.output_subdir))
    if member is None and description.kvstore.distributed:
        code = supervise(description, run_dir, [*flags, *composed.overrides])
        if code == EXIT_BAD_INPUT and before.holds_settings:
            # Another worker may have refused first, and ended the one that writes there.
            before.put_back_settings()
        return code
    overrides = [*composed.overrides, f"hydra.run.dir={quote(str(run_dir))}", "hydra.mode=RUN"]
    _outcomes.clear()
    try:
        with claim(run_dir, composed), hydra_settings_at_fault(lambda: bool(_outcomes)):
            composed.composer.hydra.run(config_name=CONFIG_NAME, task_function=job, overrides=overrides)
    except MxtrainError:
        before.restore()
        raise
    code = exit_code_of(_outcomes)
    if code == EXIT_BAD_INPUT and _outcomes[-1].step == 0:
        before.restore()
    return code


def run_follower(composed: Composed) -> int:
    """Trains as one of the workers that write no run directory."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    result = train_safely(composed.config, composed.run_dir, command_line(overrides=composed.overrides))
    if result.cause:
        print_cause(result.cause, result.exit_code)
    return result.exit_code


def run_sweep(composer: Composer, overrides: Sequence[str]) -> int:
    """Checks all jobs of a sweep, runs them, and returns the exit code."""

    def check_job(job_overrides: Sequence[str]) -> Description:
        before = dict(os.environ)
        try:
            return check(compose_and_check(composer, job_overrides))
        finally:
            # Each job sets its own runtime; this process only looks.
            os.environ.clear()
            os.environ.update(before)

    return sweep.run_sweep(composer, overrides, check_job, job)


def compose_and_check(composer: Composer, overrides: Sequence[str]) -> Composed:
    """The validated configuration.

    Raises:
        ConfigError: everything that is wrong, both in the overrides' names and in the values of the others.
    """
    try:
        composed = composer.compose(overrides)
    except ConfigError as error:
        right = getattr(error, "right", None)
        if not right:
            raise
        try:
            check(composer.compose(right), together=False)  # what was meant by the others is not known
        except ConfigError as more:
            raise ConfigError(f"{error}\n{more}") from None
        raise
    check(composed)
    return composed


def check(composed: Composed, together: bool = True) -> Description:
    """Validates a composed configuration, with the runtime set before any class of the user's is imported.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    set_runtime(composed.config, composed.where)
    return describe(composed.config, composed.where, together=together)


def set_runtime(config: Any, where: Any) -> Optional[runtime.RuntimeReport]:
    """Sets the environment that MXNet reads when it is imported; None where the description is wrong."""
    try:
        spec = build_group("runtime", config["runtime"], where)
        parallel = build_group("parallel", config["parallel"], where)
        amp = build_group("amp", config["amp"], where)
    except (ConfigError, KeyError):
        return None  # describe says it together with everything else that is wrong
    num_devices = parallel.num_devices() * int(os.environ.get(HOST_WORKERS, "1"))
    profile = config["trainer"].get("profile") is True
    return runtime.apply(spec, num_devices=num_devices, bfloat16=amp.dtype == "bfloat16", one_by_one=profile)


def claim(run_dir: Path, composed: Composed) -> Any:
    """Takes the run directory for this process, after looking whether what it holds may be continued.

    Raises:
        RunDirectoryError: another process trains there.
        CheckpointError: it holds a run of another description. Nothing was written.
    """
    from mxtrain.checkpoint import CheckpointStore, lock_run_directory
    from mxtrain.trainer.resume import find_checkpoint, set_aside

    settings = composed.config["checkpoint"]
    lock = lock_run_directory(run_dir)
    try:
        if os.path.lexists(run_dir / "checkpoints") or settings["resume"] not in ("auto", "never"):
            store = CheckpointStore(run_dir / "checkpoints", keep_last=1, keep_top=1, report=lambda text: None)
            find_checkpoint(settings["resume"], store, composed.config)
        if settings["resume"] == "never":
            moved = set_aside(run_dir, hydra=True)  # before Hydra writes there
            if moved is not None:
                print(f"checkpoint.resume=never: the earlier run's files are now in {moved}", flush=True)
    except BaseException:
        lock.release()
        raise
    return lock


# The job, which Hydra calls: here, or in a launcher's worker.


def job(config: DictConfig) -> Optional[float]:
    """One training run in Hydra's run directory; returns the best value of `trainer.monitor` for sweepers.

    Raises:
        JobFailed: to a sweeper that wants to know.
        KeyboardInterrupt: the sweep must not go on to the next job.
    """
    plain: Dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    settings = HydraConfig.get()
    run_dir = Path(settings.runtime.output_dir)
    overrides = list(settings.overrides.task)
    command = command_line(flags=config_dir_of(settings), overrides=overrides, choices=choices_of(settings))
    if settings.mode is None or settings.mode.name != "MULTIRUN":
        command = sweep.with_exported_job(command)
        result = train_safely(plain, run_dir, command)
        if "console" not in (plain.get("logger") or {}) and result.state != "failed":
            from mxtrain.logger.report import print_end
            from mxtrain.logger.terminal import open_console

            print_end(open_console(sys.stdout), result, run_dir, plain, command, _predicts(plain))
        outcome = Outcome.of(None, command.words, run_dir, result)
        _outcomes.append(outcome)
        print_outcome(outcome)
        return None
    swept = swept_of(settings, overrides)
    outcome = sweep_job(plain, settings, run_dir, replace(command, job=int(settings.job.num), swept=swept))
    if outcome.exit_code in (EXIT_SIGINT, EXIT_SIGTERM) and sweep.in_this_process:
        raise KeyboardInterrupt
    if outcome.exit_code != EXIT_FINISHED and outcome.exit_code not in STOPS:
        if "BasicSweeper" in str(settings.sweeper.get("_target_")):
            return None  # it only repeats what was said
        raise JobFailed(outcome.cause)
    return None if outcome.best is None else float(outcome.best["value"])


def sweep_job(config: Dict[str, Any], settings: DictConfig, run_dir: Path, command: CommandLine) -> Outcome:
    """One job of a sweep, under its own lock, with its line in jobs.jsonl."""
    from mxtrain.checkpoint import lock_run_directory

    number, overrides = command.job, command.overrides
    print(f"\njob {number}: {' '.join(sweep.overrides_of(command.swept, overrides) or overrides)}", flush=True)
    share_machine(config, settings, overrides)
    before = None
    try:
        with lock_run_directory(run_dir):
            result = before = sweep.finished_before(run_dir, config)
            described = describe(config, conf_of)
            if result is None and not described.kvstore.distributed:
                result = train_safely(config, run_dir, command)
        if result is None:  # rank 0 takes the lock
            with sweep.exported_job(command):
                result = train_as_group(described, run_dir, command.words)
    except MxtrainError as error:
        result = failure(error)
    outcome = Outcome.of(number, overrides, run_dir, result, before is not None, command.swept)
    print_outcome(outcome)
    append_outcome(Path(str(settings.sweep.dir)) / sweep.OUTCOMES, outcome)
    return outcome


def train_as_group(description: Description, run_dir: Path, arguments: Sequence[str]) -> Result:
    """One run of several processes; what it says of its end in status.json."""
    from mxtrain.cli.group import supervise

    code = supervise(description, run_dir, arguments)
    try:
        status: Dict[str, Any] = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        status = {"state": "failed", "cause": "see above", "step": 0, "epoch": 0}
    known = {name: status[name] for name in ("cause", "step", "epoch", "best", "checkpoint") if name in status}
    return Result(state=status["state"], exit_code=code, metrics=status.get("metrics") or {}, **known)


def conf_of(path: str) -> str:
    """Where a group's options stand, for messages."""
    return f"conf/{path.split('.')[0]}/"


def share_machine(config: Dict[str, Any], settings: DictConfig, overrides: Sequence[str]) -> None:
    """Jobs that run side by side share the cores; the tree and the table are not shown for each of many jobs."""
    n_jobs = int(settings.launcher.get("n_jobs") or 1)
    if n_jobs != 1 and config["runtime"]["threads"] == "auto" and config["runtime"]["mode"] == "auto":
        cores = usable_cores()
        config["runtime"]["threads"] = max(1, cores // n_jobs) if n_jobs > 0 else 1
    console = (config.get("logger") or {}).get("console")
    if console is not None and not any("logger.console.show_" in text for text in overrides):
        console.update(show_config=False, show_model=False)


def train_safely(config: Mapping[str, Any], run_dir: Path, command: CommandLine) -> Result:
    """Trains; an error becomes a result. What nobody foresaw is shown with its traceback."""
    try:
        return train(config, run_dir, command)
    except MxtrainError as error:
        file_log.error("%s", error)
        return failure(error)
    except Exception as error:
        result = Result("failed", EXIT_CRASHED, unforeseen(error), step=0, epoch=0)
        if not (run_dir / "status.json").exists():
            from mxtrain.callback.status import StatusFile

            StatusFile(run_dir).on_end(result)
        return result


def failure(error: MxtrainError) -> Result:
    """The result of a run that could not start."""
    return Result("failed", error.exit_code, str(error), step=0, epoch=0)


def train(config: Mapping[str, Any], run_dir: Path, command: CommandLine) -> Result:
    """Trains what the configuration describes.

    Raises:
        MxtrainError: nothing was started.
    """
    from mxtrain.trainer.resume import find_end, nothing_left, set_aside

    report = set_runtime(config, conf_of)
    description = describe(config, conf_of)
    world = find_world()
    if description.checkpoint.resume == "never" and world.rank == 0:
        moved = set_aside(run_dir)
        if moved is not None:
            log.info("checkpoint.resume=never: the earlier run's files are now in %s", moved)
    ended = None if description.kvstore.distributed else find_end(run_dir, config)  # workers agree on that together
    if ended is not None:
        log.info("%s", nothing_left(run_dir, ended.cause, ended.step))
        return ended
    if report and "mxnet" not in sys.modules:  # the first of a sweep's jobs in this process
        log.info("loading MXNet: %s", report.summary())
        for line in report.lines():
            file_log.info("%s", line)
    for setting in report.settings if report else ():
        if setting.source == "too late":
            log.warning("%s=%s comes too late: %s", setting.variable, setting.value, setting.why)
    if report and description.amp.dtype == "bfloat16" and not report.fast_bfloat16:
        why = next((line for line in report.lines() if line.startswith(ISA)), "")
        log.warning("amp=bfloat16 is no faster than amp=off here. %s", why)
    if description.runtime.huge_pages and not huge_pages.keep_joining():
        log.warning(
            "runtime.huge_pages=true has no effect: this kernel does not join pages on request (%s)", huge_pages.ENABLED
        )
    # Imports MXNet: only from here on.
    from mxtrain.build import build_run
    from mxtrain.description.provenance import write_meta
    from mxtrain.engine.backend import own_operators

    if description.runtime.operators is True and own_operators().path is None:
        raise ConfigError(f"runtime.operators=true: {own_operators().why}. Type runtime.operators=auto, or mend that.")
    built = build_run(description, run_dir, command, world)
    if world.rank == 0:
        write_meta(run_dir, description, report)
    return built.runner.train(built.info)


def config_dir_of(settings: DictConfig) -> List[str]:
    """The flags that bring in the user's own configuration, to show with the commands to go on."""
    return config_flags(
        [source.path for source in settings.runtime.config_sources if source.provider == "command-line"]
    )


def config_flags(folders: Sequence[str]) -> List[str]:
    """What brings in the user's own configuration."""
    return ["--config-dir", folders[0]] if folders else []


def swept_of(settings: DictConfig, overrides: Sequence[str]) -> List[str]:
    """The settings in which a sweep's jobs differ: all but those that `run_sweep` keeps out of the folders' names."""
    fixed = set(settings.job.config.override_dirname.exclude_keys)
    return [key for key in map(key_of, overrides) if key not in fixed]


def choices_of(settings: DictConfig) -> Dict[str, str]:
    """The chosen option of each group that takes one."""
    chosen = settings.runtime.choices.items()
    return {group: str(option) for group, option in chosen if option is not None and not group.startswith("hydra/")}


def _predicts(config: Mapping[str, Any]) -> bool:
    """Whether `predict` has something to say with what this configuration trains."""
    return build_group("task", config["task"], lambda group: group).predicts
