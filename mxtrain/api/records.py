"""Compares, repeats and sends runs by their records: `diff`, `reproduce`, `replay`, `push`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from mxtrain.api.arguments import AnyPath, folders_of, override_of_dir, read_call, require_flag
from mxtrain.archive.meta import read_recorded_run
from mxtrain.archive.run_folders import path_in
from mxtrain.cluster.launch.preserved import preserved_process
from mxtrain.composing.recorded import compose_recorded
from mxtrain.composing.restored import restore
from mxtrain.config.specs import validate_arguments

if TYPE_CHECKING:
    from mxtrain.training.restored_run import RestoredRun
    from mxtrain.workflows.diff import DiffResult
    from mxtrain.workflows.push import PushResult
    from mxtrain.workflows.replay import ReplayResult
    from mxtrain.workflows.reproduce import ReproduceResult


def diff(
    first: Any,
    second: Any,
    *,
    replay: bool = True,
    all: bool = False,
    trust_code: bool = False,
    config_dir: Optional[AnyPath] = None,
) -> DiffResult:
    """Compares two runs, as ``mxtrain diff``: settings, code, versions, data, machine, metrics, losses and layers.

    Args:
        first: run directory, or a `Run`.
        second: likewise.
        replay: whether the next training batch runs through both networks, with the weights of the last checkpoints
            that both have before the losses part, to find the first layer whose output differs. Without it MXNet is
            not imported.
        all: whether settings that change no result are listed, too, such as those of loggers.
        trust_code: see `load`.
        config_dir: see `load`.

    Returns:
        The comparison; its text is that of the command. ``sections["settings"]`` has ``name``, ``first`` and ``second``
        of each setting that differs; ``parting.step`` is the first step whose training losses differ, or None.

    Raises:
        ConfigError: one is no run directory.

    >>> found = mxtrain.diff("outputs/first", "outputs/mlp", replay=False)
    >>> found.parting.step, [one.name for one in found.sections["settings"]]
    """
    from mxtrain.workflows.diff import DiffSettings, diff_runs

    settings = validate_arguments(DiffSettings, {"replay": replay, "all": all}, "diff")
    require_flag(trust_code, "diff: trust_code")
    paths = [path_in(run, "diff") for run in (first, second)]

    def opened(path: Path) -> RestoredRun:
        return restore(path, which="last", config_dirs=folders_of(config_dir), trust_code=trust_code, command="diff")

    with preserved_process():
        return diff_runs(paths[0], paths[1], settings, opened)


def reproduce(
    run: Any,
    *overrides: str,
    dir: Optional[AnyPath] = None,
    strict: bool = False,
    tolerance: float = 0.0,
    trust_code: bool = False,
    config_dir: Optional[AnyPath] = None,
) -> ReproduceResult:
    """Trains a run again in a new directory and compares the results to the bit, as ``mxtrain reproduce``.

    Args:
        run: run directory, or a `Run`; it must not be trained on Python objects.
        overrides: changes of its description, e.g. ``"dataset.root=FOLDER"``.
        dir: the new run directory; default: ``outputs/DATE/TIME``.
        strict: whether to refuse to start if anything differs that may change the result.
        tolerance: largest relative difference of final metrics that passes; 0.0: weights, metrics and rows are the
            same bits.
        trust_code: see `load`.
        config_dir: see `load`.

    Returns:
        ``same`` and ``passed``, ``conditions.differences`` of settings, versions, code, data and machine, the
        comparison in ``results``, and the ``path`` of the new run.

    Raises:
        ConfigError: there is no such run, it cannot be composed here, or something differs and ``strict`` is set.
        MxtrainError: the new run could not start.

    >>> mxtrain.reproduce("outputs/mlp", dir="outputs/again").same
    True
    """
    from mxtrain.workflows.reproduce import ReproduceSettings, reproduce_run

    call = read_call(reproduce, overrides, config_dir)
    require_flag(trust_code, "reproduce: trust_code")
    values = {"strict": strict, "tolerance": tolerance}
    settings = validate_arguments(ReproduceSettings, values, "reproduce")
    recorded = read_recorded_run(Path(os.path.abspath(path_in(run, "reproduce"))))
    words = [*call.overrides, *override_of_dir(dir, "reproduce")]
    with call.composer() as composer:
        from mxtrain.cluster.launch.run import prepare_run

        composed = compose_recorded(recorded, words, composer, call.folders, trust_code)
        return reproduce_run(recorded, prepare_run(*composed, call.flags), settings)


def replay(
    bundle: Any,
    *overrides: str,
    step: Optional[int] = None,
    trust_code: bool = False,
    config_dir: Optional[AnyPath] = None,
) -> ReplayResult:
    """Repeats the step at which a run failed on one device and layer by layer, as ``mxtrain replay``.

    Args:
        bundle: folder below ``replay/`` of a run, or a run directory, or a `Run`.
        overrides: changes of the description of the run, e.g. ``"dataset.root=FOLDER"``.
        step: number of the step of a run; default: the one that it wrote when it failed, else the one after its last
            row in metrics.jsonl.
        trust_code: see `load`.
        config_dir: see `load`.

    Returns:
        ``repeated.layers`` and ``repeated.gradients``, each with ``name``, ``smallest``, ``largest``, ``mean`` and the
        share ``nonfinite``; ``repeated.loss`` and ``repeated.verdict``.

    Raises:
        ConfigError: there is no such step, the bundle is damaged, or it names code that is not trusted.
        CheckpointError: the weights are damaged or do not fit.
        DataError: the batch cannot be read again.

    >>> mxtrain.replay("outputs/mlp").repeated.loss
    """
    from mxtrain.composing.replayed import StepRestorer
    from mxtrain.workflows.replay import ReplaySettings, find_step, replay_step

    call = read_call(replay, overrides, config_dir)
    require_flag(trust_code, "replay: trust_code")
    settings = validate_arguments(ReplaySettings, {"step": step}, "replay")
    _, source = find_step(Path(path_in(bundle, "replay")), settings.step)
    with preserved_process():
        return replay_step(source, StepRestorer(call.overrides, call.folders, trust_code))


def push(run: Any, *overrides: str, tracker: str, config_dir: Optional[AnyPath] = None) -> PushResult:
    """Sends what a run has written to a tracker, as ``mxtrain push``. MXNet is not needed.

    A run that was sent before goes on there: only what is missing is sent. Keys are read from the environment.

    Args:
        run: run directory, or a `Run`.
        overrides: settings of the tracker, e.g. ``"logger.mlflow.uri=http://host:5000"``.
        tracker: its name: ``"mlflow"``, ``"wandb"``, or one of your own in conf/logger/.
        config_dir: folder with further groups and options.

    Returns:
        The number of points ``sent``, whether the run is ``complete`` there, its ``remote_id`` and ``destination``.

    Raises:
        ConfigError: there is no such tracker, a setting is wrong, or its package is not installed.
        DataError: there is no such run, or it wrote no metrics.jsonl.
        RunDirectoryError: a process trains there.
    """
    from mxtrain.composing.trackers import tracker_of
    from mxtrain.workflows.push import push_run

    call = read_call(push, overrides, config_dir)
    path = Path(path_in(run, "push"))
    with call.composer() as composer:
        return push_run(path, tracker_of(tracker, call.overrides, composer))
