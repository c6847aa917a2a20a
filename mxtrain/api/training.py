"""Trains runs, writes files that start them on other engines, and chooses or checks settings: `train`, `launch`,
`score`, `lr_find`, `plan`, `verify`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Optional, Sequence, Union

from typing_extensions import Unpack

from mxtrain.api.arguments import AnyPath, absolute_path, optional_path, override_of_dir, read_call, without_none
from mxtrain.api.run import Run
from mxtrain.archive.run_files import STATUS_FILE
from mxtrain.composing.environment import compose_and_check, set_environment
from mxtrain.composing.objects import Objects
from mxtrain.composing.parts import Parts, with_parts
from mxtrain.config.specs import validate_arguments
from mxtrain.errors import EXIT_BAD_INPUT, ConfigError, MxtrainError

if TYPE_CHECKING:
    from mxtrain.config.groups import Description
    from mxtrain.parallel.differences import Verification
    from mxtrain.training.lr_range import LearningRateCurve
    from mxtrain.workflows.launch import LaunchFiles
    from mxtrain.workflows.plan import PlanResult
    from mxtrain.workflows.score import ScoreResult


@with_parts(Parts)
def train(
    *overrides: str,
    dir: Optional[AnyPath] = None,
    config_dir: Optional[AnyPath] = None,
    process: Literal["same", "new"] = "same",
    callbacks: Any = None,
    **parts: Unpack[Parts],
) -> Run:
    """Trains, and returns the run, even if training failed or was interrupted; see `Run.state`.

    With ``"trainer.folds=5"`` a run is trained for each fold: see `Run.folds`.

    Equivalent to ``python -m mxtrain OVERRIDES hydra.run.dir=DIR``, with the same files in the run directory. An
    unfinished run of the same description in the run directory is continued; objects must be given again.

    Args:
        overrides: as on the command line.
        dir: the run directory; default: ``outputs/DATE/TIME``.
        config_dir: folder with further groups and options.
        process: ``"new"`` trains in a process of its own, with MXNet's settings of its own, and shows its output here.
            Interrupting it ends the process after a checkpoint. Objects cannot be sent there.
        callbacks: `mxtrain.types.Callback` objects; `mxtrain.callback.Action` objects, whose state is in checkpoints;
            or functions of one argument: each row of metrics.jsonl, a dict.
        parts: groups by name: the name of an option (``model="lenet"``), a dict of settings (``optimizer={"lr":
            1e-3}``), or an object: ``model``: a `gluon.Block`; ``dataset``: ``(x, y)`` arrays, a Gluon or PyTorch
            dataset whose items are ``(x, y)``, or a tuple ``(train, val[, test])`` of these; ``loss``: a block;
            ``metric``: an `EvalMetric`, a function of (targets, predictions), or several in a list or dict;
            ``optimizer``: an `mxnet.optimizer.Optimizer`.

    Raises:
        ConfigError: the description, an object or the data are wrong; no file of the run directory was changed.
        RunDirectoryError: another process trains there.
        CheckpointError: the directory holds a run of another description.
        MxtrainError: the process of its own was killed before the run began.

    >>> run = mxtrain.train("model=mlp", "trainer.max_epochs=3", dir="outputs/mlp")
    >>> run.state, run.best["value"]
    >>> run = mxtrain.train(model=net, dataset=(x, y), optimizer={"lr": 1e-3}, callbacks=[print])
    """
    if process not in ("same", "new"):
        raise ConfigError(f"train: process={process!r}: it may be 'same' or 'new'.")
    call = read_call(train, overrides, config_dir, {**parts, "callbacks": callbacks})
    words = [*call.overrides, *override_of_dir(dir, "train")]
    with call.composer() as composer:
        composed, description = compose_and_check(composer, words)
        run_dir = Path(os.path.abspath(composed.run_dir))
        refuse_several_processes(description, call.objects, "train", process)
        if process == "new":
            from mxtrain.cluster.launch.new_process import train_in_new_process

            code, cause, step = train_in_new_process([*call.flags, *words], run_dir, dir is None)
        else:
            from mxtrain.cluster.launch.folds import train_folds
            from mxtrain.cluster.launch.run import train_once

            if description.parallel.is_chosen_before_run:
                from mxtrain.cluster.launch.automatic import with_placement

                composed, description = with_placement(composer, composed, description, words, call.folders)
            if description.trainer.is_fold_group:
                end = train_folds(composer, composed, description, words, call.flags)
            else:
                end = train_once(composed, description, call.flags)
            code, cause, step = end.exit_code, end.cause, end.step
        if code == EXIT_BAD_INPUT and step == 0:
            raise ConfigError(cause)
        # Exit codes below 0 are signals: a killed process may have written no status that `Run.state` could report.
        if code < 0 and not (run_dir / STATUS_FILE).exists():
            raise MxtrainError(f"train: {cause}, before the run began.")
    return Run(run_dir, config_dir=config_dir, trust_code=True, objects=call.objects)  # the caller named the classes


def refuse_several_processes(
    description: Description, objects: Objects, function: str, process: Literal["same", "new"] = "same"
) -> None:
    """Raises a `ConfigError` if objects were given that other processes would need."""
    if not objects:
        return
    names = ", ".join(objects.values)
    if process == "new":
        raise ConfigError(
            f'train: process="new" with objects ({names}): objects cannot be sent to another process. Leave process '
            'out, or name their classes, e.g. "model._target_=package.Class".'
        )
    if description.kvstore.distributed:
        raise ConfigError(
            f"{function}: several workers with objects ({names}): objects cannot be sent to other processes. Type "
            'kvstore=local, or name their classes, e.g. "model._target_=package.Class".'
        )


def score(
    experiment: str, *overrides: str, dir: Optional[AnyPath] = None, config_dir: Optional[AnyPath] = None
) -> ScoreResult:
    """Trains a preset of conf/experiment and compares the result with the score in its YAML file.

    Args:
        experiment: name of the preset, e.g. ``"breast_cancer"``; ``mxtrain score`` lists those with a score.
        overrides: settings that the preset needs, e.g. ``"dataset.root=FOLDER"``.
        dir: the run directory; default: ``outputs/DATE/TIME``.
        config_dir: folder with further groups and options.

    Returns:
        ``reached``, the ``value`` in the unit of the metric, the ``score`` with its ``tolerance``, and the ``path`` of
        the run.

    Raises:
        ConfigError: there is no such preset, it has no score, or lacks a setting that it needs.
        DataError: its data are missing.

    >>> mxtrain.score("breast_cancer", dir="outputs/score").reached
    True
    """
    from mxtrain.cluster.launch.scored import prepare_score
    from mxtrain.workflows.score import score_run

    if not isinstance(experiment, str):
        raise ConfigError(f"score: experiment={experiment!r:.60}: it must be the name of a preset.")
    call = read_call(score, overrides, config_dir)
    run_dir = optional_path(dir, "score: dir")
    with call.composer() as composer:
        return score_run(*prepare_score([experiment], call.overrides, composer, run_dir, call.folders))


@with_parts(Parts)
def launch(
    *overrides: str,
    for_: str,
    out: AnyPath,
    name: Optional[str] = None,
    image: Optional[str] = None,
    storage: Optional[str] = None,
    nodes: Optional[int] = None,
    cpus: Optional[int] = None,
    memory: Optional[int] = None,
    gpus: Optional[int] = None,
    config_dir: Optional[AnyPath] = None,
    **parts: Unpack[Parts],
) -> LaunchFiles:
    """Writes the files with which another engine starts a run, as ``mxtrain launch``. Trains and sends nothing.

    Args:
        overrides: as on the command line, e.g. ``"kvstore=dist_sync"``, ``"cluster.workers=2"``.
        for_: ``"kubernetes"``, ``"kubeflow"``, ``"volcano"``, ``"slurm"``, ``"skypilot"``, ``"sagemaker"`` or
            ``"docker"``.
        out: folder to make.
        name: name of the job and of its run directory; default: ``"mxtrain"``.
        image: container image, as the engine pulls it.
        storage: place of run directories, e.g. ``"pvc://CLAIM"`` or ``"s3://BUCKET"``.
        nodes: machines, pods or instances; default: one for each worker.
        cpus: cores of a node.
        memory: GiB of memory of a node.
        gpus: GPUs of a node.
        config_dir: folder with further groups and options; for Slurm alone.
        parts: groups by name, as for `train`; objects cannot be sent.

    Returns:
        The ``folder``, its ``files`` and the next ``commands``, pairs of a purpose and a command. Its text is what
        ``mxtrain launch`` prints.

    Raises:
        ConfigError: an override or a setting is wrong, or the engine cannot start this run; nothing was written.
        DataError: the folder exists, or cannot be written.

    >>> job = mxtrain.launch("model=mlp", for_="slurm", out="job")
    >>> job.files
    ['README.md', 'job.sbatch']
    """
    from mxtrain.workflows import launch as workflow

    call = read_call(launch, overrides, config_dir, parts)
    if call.objects:
        raise ConfigError(
            f"launch: {next(iter(call.objects.values))} is an object, which cannot be sent to an engine. Name its "
            'class, e.g. "model._target_=package.Class".'
        )
    given = without_none(
        name=name, image=image, storage=storage, nodes=nodes, cpus=cpus, memory=memory, gpus=gpus, **{"for": for_}
    )
    settings = workflow.read_settings({**given, "out": absolute_path(out, "launch: out")})
    with call.composer() as composer:
        composed, description = compose_and_check(composer, call.overrides)
        return workflow.launch(description, composed.overrides, settings, call.flags)


@with_parts(Parts)
def lr_find(
    *overrides: str,
    start: float = 1e-6,
    end: float = 10.0,
    steps: int = 100,
    output: Optional[AnyPath] = None,
    config_dir: Optional[AnyPath] = None,
    **parts: Unpack[Parts],
) -> LearningRateCurve:
    """Trains a copy at exponentially rising learning rates, and returns the losses and the range in which they fall.

    It trains in this process and writes no run directory. Several workers (``kvstore=dist_sync``, ``horovod``, ...) are
    started as processes of their own, which takes no objects.

    Args:
        overrides: as on the command line, e.g. ``"model=resnet"``.
        start: first learning rate.
        end: last learning rate.
        steps: number of steps, unless the loss diverges before; at least 10.
        output: folder for curve.png, curve.csv and curve.json; default: none is written.
        config_dir: folder with further groups and options.
        parts: as for `train`; given objects stay as they are.

    Returns:
        The curve: ``range``, the rates between which the loss falls, or None; ``rates``, ``losses`` and ``smoothed`` of
        each step; ``diverged``; and ``reasons()``, sentences about the range.

    Raises:
        ConfigError: an override, a setting or an object is wrong.
        DataError: the data cannot be read, or the files cannot be written.
        MxtrainError: the loss of the first step is not finite.

    >>> curve = mxtrain.lr_find("model=mlp", "optimizer=sgd")
    >>> curve.range
    """
    from mxtrain.cluster.launch.range_test import run_range_test
    from mxtrain.terminal.progress import SILENT
    from mxtrain.workflows.lr_find import LrFindSettings

    call = read_call(lr_find, overrides, config_dir, parts)
    folder = optional_path(output, "lr_find: output")
    values = {"start": start, "end": end, "steps": steps, **without_none(output=folder)}
    settings = validate_arguments(LrFindSettings, values, "lr_find")
    with call.composer() as composer:
        _, description = compose_and_check(composer, call.overrides)
        refuse_several_processes(description, call.objects, "lr_find")
        curve = run_range_test(description, settings, call.flags, call.overrides, SILENT)
    if output is not None:
        curve.write(Path(settings.output))
    return curve


@with_parts(Parts)
def plan(
    *overrides: str,
    devices: Union[Literal["auto"], int] = "auto",
    over: Sequence[str] = (),
    workers: int = 1,
    bandwidth: Optional[float] = None,
    latency: float = 0.1,
    shared: bool = False,
    seconds: float = 0.5,
    profile: Optional[AnyPath] = None,
    out: Optional[AnyPath] = None,
    fresh: bool = False,
    figure: Optional[AnyPath] = None,
    config_dir: Optional[AnyPath] = None,
    **parts: Unpack[Parts],
) -> PlanResult:
    """Predicts time, memory and traffic of all placements of a run, as ``mxtrain plan``. Trains nothing.

    A few placements are measured, each in a process of its own; other calls with the same configuration take these
    measurements from the user's cache.

    Args:
        overrides: as on the command line, e.g. ``"model=resnet"``; their placement is not used.
        devices: largest number of devices of a worker.
        over: what else is compared, ``"precision"`` and ``"recompute"``.
        workers: largest number of workers.
        bandwidth: Gbit/s of the link of each worker's machine; None: all workers are on this machine.
        latency: milliseconds of a message over such a link.
        shared: whether the workers share the cores of this machine all the same.
        seconds: time for each measurement.
        profile: file with measurements to take instead.
        out: file for the measurements.
        fresh: whether to measure again.
        figure: PNG file for samples/s by the number of workers.
        config_dir: folder with further groups and options.
        parts: groups by name, as for `train`; objects cannot be sent to the processes that measure.

    Returns:
        The placements: ``best``, the fastest that fits, or None; ``forecasts``, fastest first;
        ``overrides(forecast)``, which train it; ``advice``, a sentence on the number of workers; ``rows()`` and
        ``frame()`` as a table; ``profile``.

    Raises:
        ConfigError: an override or a setting is wrong, or the run cannot be trained on one device.
        DataError: a profile cannot be read or written; the data cannot be read.

    >>> found = mxtrain.plan("model=resnet")
    >>> found.overrides(found.best)
    """
    from mxtrain.terminal.progress import SILENT
    from mxtrain.workflows.plan import PlanSettings, plan_placements

    call = read_call(plan, overrides, config_dir, parts)
    if call.objects:
        raise ConfigError(
            f"plan: {next(iter(call.objects.values))} is an object, which cannot be sent to the processes that "
            'measure. Name its class, e.g. "model._target_=package.Class".'
        )
    paths = {"profile": profile, "out": out, "figure": figure}
    files = without_none(**{name: optional_path(path, f"plan: {name}") for name, path in paths.items()})
    links = {"workers": workers, "bandwidth": bandwidth, "latency": latency, "shared": shared}
    values = {"devices": devices, "over": list(over), "seconds": seconds, "fresh": fresh, **links, **files}
    settings = validate_arguments(PlanSettings, values, "plan")
    with call.composer() as composer:
        _, description = compose_and_check(composer, call.overrides)
        return plan_placements(description, call.overrides, call.folders, settings, SILENT)


@with_parts(Parts)
def verify(
    *overrides: str,
    steps: int = 3,
    tolerance: float = 1e-6,
    config_dir: Optional[AnyPath] = None,
    **parts: Unpack[Parts],
) -> Verification:
    """Trains a few steps with the placement of a description and on one device, and compares the results.

    Args:
        overrides: as on the command line, e.g. ``"parallel=hybrid"``.
        steps: optimizer steps.
        tolerance: largest difference that passes in float64, relative to the largest value of a tensor.
        config_dir: folder with further groups and options.
        parts: as for `train`.

    Returns:
        The comparison: ``passed``, ``worst``, and ``layers`` with the name of each ``layer`` and its ``gradient_abs``,
        ``gradient_rel``, ``parameter_abs`` and ``parameter_rel``. ``own.wrong`` lists your own blocks whose gradient
        is not that of their value, with ``layer``, ``kind``, ``tensor``, ``error`` and ``dtype``.

    Raises:
        ConfigError: the description is wrong, or no two devices could give the same numbers.

    >>> found = mxtrain.verify("parallel=pipeline", "model=mlp")
    >>> found.passed, {layer.layer: layer.gradient_rel for layer in found.layers}
    """
    from mxtrain.workflows import verify as workflow

    call = read_call(verify, overrides, config_dir, parts)
    settings = validate_arguments(workflow.VerifySettings, {"steps": steps, "tolerance": tolerance}, "verify")
    with call.composer() as composer:
        _, description = compose_and_check(composer, call.overrides)
        workflow.refuse_updates_without_order(description)
        if description.kvstore.distributed:
            raise ConfigError("verify: several workers are compared by the command: python -m mxtrain verify ...")
        set_environment(description, exact=True)
        return workflow.verify(description, settings)
