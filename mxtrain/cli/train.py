"""`mxtrain train`: checks everything first, then lets Hydra make the run directory and call the job."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mxtrain import runtime
from mxtrain.cli import arguments as command_line
from mxtrain.cli.compose import CONFIG_NAME, Composed, Composer, conf_dir, jobs
from mxtrain.cli.outcome import JobFailed, outcomes
from mxtrain.config import build_spec
from mxtrain.description import GROUPS, Description, describe
from mxtrain.errors import EXIT_FINISHED, MxtrainError
from mxtrain.types import Result

log = logging.getLogger("mxtrain")


def run(arguments: Sequence[str]) -> int:
    """Trains, or runs a sweep; returns the exit code."""
    given = command_line.parse(arguments)
    command_line.no_positionals(given, "train")
    if given.only_shows:
        return call_hydra(given.flags, check_overrides_only(given), None)
    with Composer(given.config_dirs) as composer:
        if given.multirun:
            checked = [check(composer.compose(job)) for job in jobs(composer, given.overrides)]
            overrides = fit_sweep(composer, given.overrides)
            return call_hydra(given.flags, overrides, composer, num_jobs=len(checked))
        composed = composer.compose(given.overrides)
        check(composed)
        run_dir = Path(str(composed.hydra.run.dir))
        overrides = [*composed.overrides, f"hydra.run.dir={quote(str(run_dir))}"]
    with claim(run_dir, composed):
        return call_hydra(given.flags, overrides, composer)


def check_overrides_only(given: command_line.Arguments) -> List[str]:
    """For flags that only show something: the overrides must be right, the run need not be possible."""
    with Composer(given.config_dirs) as composer:
        return list(composer.compose(given.overrides).overrides)


def fit_sweep(composer: Composer, overrides: Sequence[str]) -> List[str]:
    """The overrides of a sweep as Hydra must be given them (see `Composer.compose`)."""
    first = composer.compose(next(iter(jobs(composer, overrides)))).overrides
    fixed = [line for line in first if line.lstrip("+").split("=")[0] == "model" and line not in overrides]
    has_model = any(override.split("=")[0] == "model" for override in overrides)
    return [*([] if has_model else fixed), *overrides]


def check(composed: Composed) -> Description:
    """Validates a composed configuration, with the runtime set before any class of the user's is imported.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    set_runtime(composed.config, composed.where)
    return describe(composed.config, composed.where)


def set_runtime(config: Any, where: Any) -> runtime.RuntimeReport:
    """Sets the environment that MXNet reads when it is imported."""
    spec = build_spec(config["runtime"], "runtime", GROUPS["runtime"], where)
    parallel = build_spec(config["parallel"], "parallel", GROUPS["parallel"], where)
    return runtime.apply(spec, num_devices=parallel.num_devices())


def claim(run_dir: Path, composed: Composed) -> Any:
    """Takes the run directory for this process, after looking whether what it holds may be continued.

    Raises:
        RunDirectoryError: another process trains there.
        CheckpointError: it holds a run of another description. Nothing was written.
    """
    from mxtrain.checkpoint import CheckpointStore, lock_run_directory
    from mxtrain.resume import find_checkpoint

    settings = composed.config["checkpoint"]
    lock = lock_run_directory(run_dir)
    with_error = True
    try:
        if (run_dir / "checkpoints").is_dir() or settings["resume"] not in ("auto", "never"):
            store = CheckpointStore(run_dir / "checkpoints", keep_last=1, keep_top=1, report=lambda text: None)
            find_checkpoint(settings["resume"], store, composed.config)
        with_error = False
    finally:
        if with_error:
            lock.release()
    return lock


def quote(text: str) -> str:
    """A value for Hydra's override grammar."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def call_hydra(flags: Sequence[str], overrides: Sequence[str], composer: Optional[Composer], num_jobs: int = 1) -> int:
    """Lets Hydra make directories, set up logging and call `job`, once or for each job of a sweep."""
    outcomes.clear()
    argv, sys.argv = sys.argv, [sys.argv[0], *flags, *overrides]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=CONFIG_NAME)(job)()
    except JobFailed:
        pass  # shown when it happened
    finally:
        sys.argv = argv
    return outcomes.exit_code()


def job(config: DictConfig) -> Optional[float]:
    """One training run in Hydra's run directory; returns the best value of `trainer.monitor` for sweepers."""
    plain: Dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    settings = HydraConfig.get()
    run_dir = Path(settings.runtime.output_dir)
    overrides = [line for line in settings.overrides.task]
    in_sweep = settings.mode is not None and settings.mode.name == "MULTIRUN"
    number = settings.job.num if in_sweep else None
    try:
        result = train(plain, run_dir, overrides, in_sweep)
    except MxtrainError as error:
        result = Result("failed", error.exit_code, str(error), step=0, epoch=0)
    outcomes.add(number, overrides, run_dir, result)
    if result.exit_code != EXIT_FINISHED and in_sweep:
        raise JobFailed(result.cause)
    return None if result.best is None else float(result.best["value"])


def train(config: Dict[str, Any], run_dir: Path, overrides: Sequence[str], in_sweep: bool) -> Result:
    """Trains what the configuration describes.

    Raises:
        MxtrainError: nothing was started.
    """
    from mxtrain.checkpoint import lock_run_directory
    from mxtrain.resume import set_aside

    def where(group: str) -> str:
        return f"conf/{group}/"

    report = set_runtime(config, where)
    description = describe(config, where)
    if not in_sweep:
        return _train(description, run_dir, overrides, report, set_aside)
    with lock_run_directory(run_dir):
        return _train(description, run_dir, overrides, report, set_aside)


def _train(description: Description, run_dir: Path, overrides: Sequence[str], report: Any, set_aside: Any) -> Result:
    if description.checkpoint.resume == "never":
        moved = set_aside(run_dir)
        if moved is not None:
            log.info("checkpoint.resume=never: the earlier run's files are now in %s", moved)
    for line in report.lines():
        log.info("%s", line)
    # Imports MXNet: only from here on.
    from mxtrain.build import build_run
    from mxtrain.provenance import write_meta

    run = build_run(description, run_dir, overrides, program())
    write_meta(run_dir, description, report)
    return run.runner.train(run.info)


def program() -> str:
    """What started this process, as a person would type it."""
    name = os.path.basename(sys.argv[0])
    return "mxtrain" if name == "mxtrain" else shlex.join([os.path.basename(sys.executable) or "python", "-m", "mxtrain"])
