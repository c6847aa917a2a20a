"""Python API with the functions of the command line, for scripts and notebooks.

>>> import mxtrain
>>> run = mxtrain.train("debug=fast", dir="outputs/first")
>>> run.metrics["test/accuracy"], run.predict("digit.png")

Functions never exit the process: errors that the command line prints before work starts are raised with the same text.
Environment variables, log handlers, warning filters and signal handlers are restored when a function returns.
"""

from __future__ import annotations

import math
import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Union

import numpy as np
from typing_extensions import Unpack

from mxtrain.archive.meta import read_recorded_run
from mxtrain.archive.run_files import ROWS_FILE, STATUS_FILE
from mxtrain.archive.run_folders import paths_in
from mxtrain.archive.run_records import read_rows
from mxtrain.cluster.launch.preserved import preserved_process
from mxtrain.composing import explain as explanation
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check, prepare_environment, set_environment
from mxtrain.composing.objects import ObjectComposer, Objects, objects_again, read_arguments, require_overrides
from mxtrain.composing.parts import LoadedParts, MeasuredParts, Parts, with_parts
from mxtrain.composing.recorded import compose_recorded
from mxtrain.composing.restored import restore
from mxtrain.config.override_text import config_flags, key_of, quote
from mxtrain.config.placeholders import Given
from mxtrain.config.specs import validate, validate_arguments
from mxtrain.data.spec import choose_split, open_splits
from mxtrain.errors import EXIT_BAD_INPUT, ConfigError, DataError, LoaderError, run_dir_set_by
from mxtrain.files.json_text import read_json
from mxtrain.logger.jsonl import NO_ROWS
from mxtrain.task.fit import require_same_names
from mxtrain.task.sample_results import ResultReader
from mxtrain.terminal.tables import rows_text
from mxtrain.training.fold_results import read_folds
from mxtrain.types import expand_path
from mxtrain.workflows.evaluate import measure_run
from mxtrain.workflows.predict import Predictions, predict_objects
from mxtrain.workflows.runs import cell_text

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.checkpoint import Checkpoint
    from mxtrain.cluster.launch.outcome import Outcome
    from mxtrain.composing.explain import Explanation
    from mxtrain.config.groups import Description
    from mxtrain.data.signature import Signature
    from mxtrain.exporting.run import ExportReport
    from mxtrain.parallel.differences import Verification
    from mxtrain.training.lr_range import LearningRateCurve
    from mxtrain.training.restored_run import RestoredRun
    from mxtrain.training.slimming import SlimReport
    from mxtrain.training.trained import Trained
    from mxtrain.types.annotations import Config, JsonObject
    from mxtrain.workflows.check_data import DataCheck
    from mxtrain.workflows.diff import DiffResult
    from mxtrain.workflows.dry_run import DryRun
    from mxtrain.workflows.push import PushResult
    from mxtrain.workflows.replay import ReplayResult
    from mxtrain.workflows.reproduce import ReproduceResult
    from mxtrain.workflows.score import ScoreResult
    from mxtrain.workflows.tune import StudyResult

AnyPath = Union[str, "os.PathLike[str]"]
Which = Literal["best", "last"]
Split = Literal["auto", "train", "val", "test"]
NO_OBJECTS = Objects()


@with_parts(Parts)
def compose(*overrides: str, config_dir: Optional[AnyPath] = None, **parts: Unpack[Parts]) -> Config:
    """Returns the checked configuration of a command line with these overrides, as nested dicts.

    Args:
        overrides: as on the command line, e.g. ``"model=resnet"``, ``"optimizer.lr=0.01"``.
        config_dir: folder with further groups and options (``--config-dir``).
        parts: as for `train`.

    Raises:
        ConfigError: an override is wrong, or the settings do not fit each other.

    >>> mxtrain.compose("model=lenet", "optimizer.lr=0.01")["optimizer"]["lr"]
    0.01
    """
    require_overrides(overrides, "compose")
    typed, objects = read_arguments(parts, compose)
    with preserved_process(), ObjectComposer(folders_of(config_dir), objects) as composer:
        return compose_and_check(composer, [*overrides, *typed])[0].config


@with_parts(Parts)
def dry_run(*overrides: str, config_dir: Optional[AnyPath] = None, **parts: Unpack[Parts]) -> DryRun:
    """Opens the data, builds the network, and estimates memory and time of a run. Trains nothing and writes no files.

    Args:
        overrides: as on the command line.
        config_dir: folder with further groups and options.
        parts: as for `train`.

    Returns:
        ``rows``, pairs of a name and a text, and ``warnings``; its text is what ``--dry-run`` prints.

    Raises:
        ConfigError: the description or an object is wrong.
        DataError: the data are wrong.

    >>> print(mxtrain.dry_run("model=resnet", "dataset.batch_size=256"))
    """
    require_overrides(overrides, "dry_run")
    typed, objects = read_arguments(parts, dry_run)
    with preserved_process(), ObjectComposer(folders_of(config_dir), objects) as composer:
        _, description = compose_and_check(composer, [*overrides, *typed])
        prepare_environment(description)
        from mxtrain.workflows import dry_run as workflow  # imports MXNet: only from here on

        return workflow.dry_run(description)


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

    >>> run = mxtrain.train("model=mlp", "trainer.max_epochs=3", dir="outputs/mlp")
    >>> run.state, run.best["value"]
    >>> run = mxtrain.train(model=net, dataset=(x, y), optimizer={"lr": 1e-3}, callbacks=[print])
    """
    if process not in ("same", "new"):
        raise ConfigError(f"train: process={process!r}: it may be 'same' or 'new'.")
    require_overrides(overrides, "train")
    typed, objects = read_arguments({**parts, "callbacks": callbacks}, train)
    words = [*overrides, *typed]
    if dir is not None:
        words.append(f"hydra.run.dir={quote(absolute_path(dir, 'train: dir'))}")
    with (
        run_dir_set_by("dir"),
        preserved_process(),
        ObjectComposer(folders_of(config_dir), objects) as composer,
    ):
        composed, description = compose_and_check(composer, words)
        run_dir = Path(os.path.abspath(composed.run_dir))
        if objects:
            refuse_several_processes(description, objects, process)
        flags = config_flags(folders_of(config_dir))
        if process == "new":
            from mxtrain.cluster.launch.new_process import train_in_new_process

            code, cause, step = train_in_new_process([*flags, *words], run_dir, dir is None)
        else:
            from mxtrain.cluster.launch.folds import train_folds
            from mxtrain.cluster.launch.run import train_once

            if description.trainer.is_fold_group:
                end = train_folds(composer, composed, description, words, flags)
            else:
                end = train_once(composed, description, flags)
            code, cause, step = end.exit_code, end.cause, end.step
        if code == EXIT_BAD_INPUT and step == 0:
            raise ConfigError(cause)
    return Run(run_dir, config_dir=config_dir, trust_code=True, objects=objects)  # the caller named the classes


@with_parts(Parts)
def sweep(
    *overrides: str, dir: Optional[AnyPath] = None, config_dir: Optional[AnyPath] = None, **parts: Unpack[Parts]
) -> Sweep:
    """Trains a run for each combination of values, one after the other; as ``python -m mxtrain -m OVERRIDES``.

    All jobs are checked before the first one starts. A job that fails does not end the sweep. The same call with the
    same ``dir`` skips the jobs that have finished, and continues the others.

    Args:
        overrides: as on the command line; values with commas between them are swept: ``"optimizer.lr=0.1,0.01"``.
        dir: the folder of the sweep, with a run directory for each job; default: ``multirun/DATE/TIME``.
        config_dir: folder with further groups and options.
        parts: groups by name, as for `train`; objects cannot be swept.

    Returns:
        The jobs, best first, with the run of each.

    Raises:
        ConfigError: a job is invalid, an object was given, or nothing is swept; no job was started.
        DataError: the files of a dataset are missing.
        RunDirectoryError: another sweep uses the folder.

    >>> found = mxtrain.sweep("model=mlp,lenet", "optimizer.lr=0.1,0.01", dir="outputs/sweep")
    >>> found.best_run, [(job.overrides, job.best) for job in found.jobs]
    """
    from mxtrain.cluster.launch.job import train_sweep

    require_overrides(overrides, "sweep")
    typed, objects = read_arguments(parts, sweep)
    if objects:
        raise ConfigError(
            f"sweep: {next(iter(objects.values))} is an object, and Hydra composes jobs from names. Name its class, "
            'e.g. "model._target_=package.Class", or call train() for each value.'
        )
    words = [*overrides, *typed]
    if dir is not None:
        words.append(f"hydra.sweep.dir={quote(absolute_path(dir, 'sweep: dir'))}")
    with run_dir_set_by("dir"), preserved_process(), Composer(folders_of(config_dir)) as composer:
        end = train_sweep(composer, words)
    return Sweep(Path(os.path.abspath(end.folder)), end.exit_code, end.outcomes, config_dir)


def explain(key: str, *overrides: str, config_dir: Optional[AnyPath] = None) -> Explanation:
    """Explains a setting: its value, where this came from, what it overrode, and what it means.

    Args:
        key: a setting, e.g. ``"optimizer.lr"``, or a group, e.g. ``"model"``, with all of its settings.
        overrides: as on the command line, e.g. ``"model=resnet"``.
        config_dir: folder with further groups and options.

    Returns:
        ``settings``, each with ``path``, ``value``, ``meaning``, ``used`` and ``origins``; of a group also ``chosen``
        and ``options``. Its text is what ``mxtrain explain`` prints.

    Raises:
        ConfigError: there is no such setting, or an override is wrong.

    >>> print(mxtrain.explain("optimizer.lr", "model=resnet"))
    >>> mxtrain.explain("trainer.max_epochs").settings[0].value
    """
    require_overrides(overrides, "explain")
    with preserved_process(), Composer(folders_of(config_dir)) as composer:
        return explanation.explain(key, composer.compose(overrides))


def refuse_several_processes(description: Description, objects: Objects, process: str, function: str = "train") -> None:
    """Raises a `ConfigError` if objects were given that other processes would need."""
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


@with_parts(LoadedParts)
def load(
    path: AnyPath,
    which: Which = "best",
    trust_code: bool = False,
    config_dir: Optional[AnyPath] = None,
    **objects: Unpack[LoadedParts],
) -> Run:
    """Opens a run, or a single checkpoint.

    Args:
        path: run directory, or checkpoint directory.
        which: the checkpoint of a run: the best by ``trainer.monitor``, or the last.
        trust_code: whether classes that only the checkpoint names may be imported and called. Do not set it for a
            checkpoint from a source you do not trust.
        config_dir: folder with your own groups and options, whose classes are trusted.
        objects: the objects that `train` was given and that are needed now: ``model``; for `Run.evaluate` also
            ``dataset``, ``loss`` and ``metric``.

    Raises:
        CheckpointError: there is no usable checkpoint.
        ConfigError: the checkpoint names code that is not mxtrain's own, and ``trust_code`` is not set; or it was
            trained with an object that must be given again.

    >>> run = mxtrain.load("outputs/mlp")
    >>> run.evaluate()["accuracy"]
    """
    words, given = read_arguments(objects, load, only_objects=True)
    if words:
        raise ConfigError(f"load: {words[0]}: load takes objects. Give settings to evaluate().")
    run = Run(Path(absolute_path(path, "load: path")), which, trust_code, config_dir, given)
    if run.folds:
        return run
    model = run.description.model  # opens the checkpoint, and refuses untrusted code that it names
    if isinstance(model, Given):
        model.require()
    if run.checkpoint.step == 0:
        warnings.warn(f"{run.path}: its only checkpoint is of step 0: the network has learned nothing.", stacklevel=2)
    return run


@with_parts(MeasuredParts)
def evaluate(
    run: Union[AnyPath, Run],
    *overrides: str,
    split: Split = "auto",
    limit_batches: Optional[int] = None,
    dataset: Any = None,
    **parts: Unpack[MeasuredParts],
) -> Dict[str, float]:
    """Evaluates a run, or loads and evaluates the run at a path; see `Run.evaluate` and `load`.

    >>> mxtrain.evaluate("outputs/mlp", split="val")["accuracy"]
    """
    return _loaded(run).evaluate(*overrides, split=split, limit_batches=limit_batches, dataset=dataset, **parts)


def predict(run: Union[AnyPath, Run], inputs: Any, *, top_k: int = 3) -> Predictions:
    """Predicts with a run, or loads the run at a path and predicts with it; see `Run.predict` and `load`.

    >>> mxtrain.predict("outputs/mlp", "digit.png")[0]["class"]
    """
    return _loaded(run).predict(inputs, top_k=top_k)


def _loaded(run: Union[AnyPath, Run]) -> Run:
    return run if isinstance(run, Run) else load(run)


def average(
    runs: Union[AnyPath, Sequence[AnyPath]],
    *overrides: str,
    method: Optional[str] = None,
    last: int = 5,
    which: Which = "best",
    out: Optional[AnyPath] = None,
    trust_code: bool = False,
    config_dir: Optional[AnyPath] = None,
) -> Run:
    """Averages weights, and opens the checkpoint that is written: of the last checkpoints of one run, or of several
    runs (a model soup).

    Several runs must have the same network, and are measured on the validation split of the first one.

    Args:
        runs: a run directory; or two or more run directories or checkpoints.
        overrides: of several runs: settings of the evaluation, e.g. ``"dataset.eval_batch_size=256"``.
        method: of several runs: ``"greedy"``, the default, adds a run, best first, if the mean is at least as good;
            ``"uniform"`` averages all.
        last: of one run: number of the newest checkpoints, which must have been kept (``checkpoint.keep_last``).
        which: of several runs: the checkpoint of each run to use, its best or its last one.
        out: of several runs: folder of the new checkpoint; default: ``averaged/METHOD-soup`` in the first run.
        trust_code: as of `load`.
        config_dir: as of `load`.

    Raises:
        ConfigError: an argument is wrong, or the runs were not validated with the same samples.
        CheckpointError: a run has no usable checkpoint, or the average cannot be written.
        DataError: the validation data cannot be read.

    Source: Wortsman et al., "Model soups" (2022), recipe 1.

    >>> other = mxtrain.train("model=mlp", "trainer.max_epochs=3", "optimizer.lr=0.05", dir="outputs/other")
    >>> soup = mxtrain.average(["outputs/mlp", "outputs/other"], out="outputs/soup")
    >>> soup.evaluate(split="test")["accuracy"]
    """
    from mxtrain.workflows.average import AverageSettings, average_last, average_runs

    given: Sequence[AnyPath] = [runs] if isinstance(runs, (str, os.PathLike)) else runs
    is_one = given is not runs
    paths = [absolute_path(path, "average: runs") for path in given]
    require_overrides(overrides, "average")
    several = {"soup": "greedy" if method is None else method, "which": which}
    values: Dict[str, Any] = {"last": last} if is_one else several
    values.update({} if out is None else {"out": absolute_path(out, "average: out")})
    settings = validate(AverageSettings, values, "average", lambda group: "see `mxtrain average --help`")
    for name, is_given in {"method": method is not None, "out": out is not None, "overrides": bool(overrides)}.items():
        if is_one and is_given:
            raise ConfigError(f"average: {name} is for averages of several runs. Give a list of runs, or leave it out.")
    with preserved_process():
        if is_one:
            path = average_last(Path(paths[0]), settings.last).path
        else:
            folders = folders_of(config_dir)
            path = average_runs(
                paths,
                settings,
                lambda first: restore(
                    first,
                    which=which,
                    overrides=overrides,
                    config_dirs=folders,
                    trust_code=trust_code,
                    command="average",
                    settings=AverageSettings.model_fields,
                ),
                lambda text: warnings.warn(text, stacklevel=2),
            ).path
    return load(path, trust_code=trust_code, config_dir=config_dir)


def soup(
    runs: Sequence[AnyPath],
    *overrides: str,
    method: str = "greedy",
    which: Which = "best",
    out: Optional[AnyPath] = None,
    trust_code: bool = False,
    config_dir: Optional[AnyPath] = None,
) -> Run:
    """Averages the weights of several runs; the same as `average` of a list.

    >>> soup = mxtrain.soup(["outputs/mlp", "outputs/other"], out="outputs/soup2")
    """
    paths = [runs] if isinstance(runs, (str, os.PathLike)) else runs
    return average(paths, *overrides, method=method, which=which, out=out, trust_code=trust_code, config_dir=config_dir)


def export(run: Union[AnyPath, Run], out: Optional[AnyPath] = None, **settings: Any) -> ExportReport:
    """Exports a run, or loads and exports the run at a path; see `Run.export` and `load`.

    >>> mxtrain.export("outputs/mlp", "exported_mlp").errors
    """
    return _loaded(run).export(out, **settings)


def check_export(folder: AnyPath) -> Dict[str, float]:
    """Repeats the proof of an exported folder, with its samples and without MXNet.

    Args:
        folder: the folder that `Run.export` wrote.

    Returns:
        The relative error of each output, and of the inputs of each file of the proof.

    Raises:
        DataError: the folder is not an export, its network computes other outputs, or a package is missing.

    >>> mxtrain.check_export("exported_mlp")
    """
    from mxtrain.exporting.folder import check_folder

    return dict(check_folder(absolute_path(folder, "check_export: folder")))


def slim(run: Union[AnyPath, Run], out: Optional[AnyPath] = None) -> SlimReport:
    """Writes the network of a run without the channels that ``callback=prune_channels`` has set to 0.

    Args:
        run: a run, or its path; for the last checkpoint give ``mxtrain.load(path, which="last")``.
        out: run directory to write, which `load` opens; default: ``slim`` in the run directory. One that `slim` wrote
            before is replaced.

    Returns:
        ``folder``; ``widths``, the ``model.widths`` of the smaller network; ``channels``, the number of channels before
        and after by layer; ``before`` and ``after`` with ``parameters``, ``flops`` of one sample and ``seconds`` of a
        forward pass by number of samples; and ``error``, the largest relative difference of the outputs.

    Raises:
        ConfigError: there is no unused channel, or the folder holds something else.
        DataError: the data that the networks are compared on cannot be read.
        CheckpointError: the folder could not be written.

    >>> pruned = mxtrain.train("model=lenet", "callback=prune_channels", "trainer.max_epochs=3", dir="outputs/pruned")
    >>> mxtrain.slim(pruned, "outputs/slim").widths
    """
    from mxtrain.workflows import slim as workflow

    values = {} if out is None else {"out": absolute_path(out, "slim: out")}
    settings = validate(workflow.SlimSettings, values, "slim", lambda _: "an argument of mxtrain.slim")
    with _loaded(run)._prepared("slim") as restored:
        return workflow.slim(restored, settings)


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
        DataError: the data cannot be read.
        MxtrainError: the loss of the first step is not finite.

    >>> curve = mxtrain.lr_find("model=mlp", "optimizer=sgd")
    >>> curve.range
    """
    from mxtrain.cluster.launch.range_test import run_range_test
    from mxtrain.terminal.progress import SILENT
    from mxtrain.workflows.lr_find import LrFindSettings

    require_overrides(overrides, "lr_find")
    typed, objects = read_arguments(parts, lr_find)
    values: Dict[str, Any] = {"start": start, "end": end, "steps": steps}
    if output is not None:
        values["output"] = absolute_path(output, "lr_find: output")
    settings = validate(LrFindSettings, values, "lr_find", lambda _: "an argument of mxtrain.lr_find")
    words, folders = [*overrides, *typed], folders_of(config_dir)
    with preserved_process(), ObjectComposer(folders, objects) as composer:
        _, description = compose_and_check(composer, words)
        if objects:
            refuse_several_processes(description, objects, "same", "lr_find")
        curve = run_range_test(description, settings, config_flags(folders), words, SILENT)
    if output is not None:
        curve.write(Path(settings.output))
    return curve


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

    require_overrides(overrides, "verify")
    typed, objects = read_arguments(parts, verify)
    settings = validate_arguments(workflow.VerifySettings, {"steps": steps, "tolerance": tolerance}, "verify")
    with preserved_process(), ObjectComposer(folders_of(config_dir), objects) as composer:
        _, description = compose_and_check(composer, [*overrides, *typed])
        workflow.refuse_updates_without_order(description)
        if description.kvstore.distributed:
            raise ConfigError("verify: several workers are compared by the command: python -m mxtrain verify ...")
        set_environment(description, exact=True)
        return workflow.verify(description, settings)


@dataclass(frozen=True)
class Sweep:
    """Result of `sweep`; its text is a table of the jobs.

    Attributes:
        path: folder of the sweep.
        exit_code: 0 if all jobs finished; otherwise that of the first job that failed.
        jobs: the jobs, best by ``trainer.monitor`` first: ``number``, ``overrides``, ``run_dir``, ``state``,
            ``exit_code``, ``cause``, ``step``, and ``best`` with ``metric``, ``value`` and ``step`` or None.
    """

    path: Path
    exit_code: int
    jobs: Sequence[Outcome]
    config_dir: Optional[AnyPath] = None

    @property
    def runs(self) -> List[Run]:
        """Returns the run of each job, in the order of `jobs`."""
        return [self._run_of(job) for job in self.jobs]

    @property
    def best_run(self) -> Optional[Run]:
        """The run with the best value; None if no job was validated."""
        return self._run_of(self.jobs[0]) if self.jobs and self.jobs[0].best is not None else None

    def rows(self) -> List[Dict[str, Any]]:
        """Returns a dict for each job, for `pandas.DataFrame`: number, swept settings, state, metric, best and step."""
        return [
            {
                "job": job.number,
                **{key_of(word): word.partition("=")[2] for word in job.overrides if key_of(word) in job.swept},
                "state": job.state,
                "metric": None if job.best is None else job.best["metric"],
                "best": None if job.best is None else job.best["value"],
                "step": job.step,
            }
            for job in self.jobs
        ]

    def __str__(self) -> str:
        rows = self.rows()
        titles = list(dict.fromkeys(key for row in rows for key in row))
        return rows_text(titles, [[cell_text(row.get(title)) for title in titles] for row in rows])

    __repr__ = __str__

    def _run_of(self, job: Outcome) -> Run:
        return Run(Path(job.run_dir), config_dir=self.config_dir, trust_code=True)  # the caller named the classes


class Run:
    """A run directory or a checkpoint. Returned by `train` and `load`.

    The network is loaded on first use and kept in memory.
    """

    def __init__(
        self,
        path: Path,
        which: Which = "best",
        trust_code: bool = False,
        config_dir: Optional[AnyPath] = None,
        objects: Objects = NO_OBJECTS,
    ):
        if which not in ("best", "last"):
            raise ConfigError(f"which={which!r}: there is no such checkpoint. It may be 'best' or 'last'.")
        self.path = path
        self._which, self._trusts_code, self._config_dir = which, trust_code, config_dir
        self._objects = objects
        self._restored: Optional[RestoredRun] = None
        self._loaded: Optional[Trained] = None

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, state={self.state!r})"

    @property
    def status(self) -> JsonObject:
        """Content of status.json, or of folds.json; empty if there is none, as for a checkpoint outside of its run."""
        file = self.path / STATUS_FILE
        found = read_json(file) if file.is_file() else read_folds(self.path)
        return found if isinstance(found, dict) else {}

    @property
    def folds(self) -> List[Run]:
        """Returns the runs of a cross validation, one for each fold that has ended; empty for an ordinary run.

        Of a cross validation, `metrics` are the means over its folds, and ``status["std"]`` their standard deviations.

        >>> group = mxtrain.train("debug=fast", "model=mlp", "trainer.folds=3", dir="outputs/cv")
        >>> group.metrics["val/accuracy"], group.status["std"]["val/accuracy"], group.folds[0].metrics
        """
        content = read_folds(self.path) or {"runs": []}
        return [
            Run(self.path / one["run"], self._which, self._trusts_code, self._config_dir, self._objects)
            for one in content["runs"]
        ]

    @property
    def state(self) -> str:
        """``"finished"``, ``"stopped_early"``, ``"interrupted"``, ``"pruned"``, ``"failed"`` or ``"running"``; empty if
        unknown."""
        return str(self.status.get("state", ""))

    @property
    def cause(self) -> str:
        """Reason for the end of a run that did not finish."""
        return str(self.status.get("cause", ""))

    @property
    def best(self) -> Optional[Mapping[str, Any]]:
        """Metric, value and step of the best checkpoint; None if nothing was validated."""
        return self.status.get("best")

    @property
    def metrics(self) -> Dict[str, float]:
        """Returns the final metrics, e.g. ``{"val/accuracy": 0.97, "test/loss": 0.1}``; undefined ones are NaN."""
        found: Dict[str, float] = {}
        metrics = self.status.get("metrics")
        for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if value is None or isinstance(value, (int, float)):
                found[name] = math.nan if value is None else value  # JSON holds an undefined value as null
        return found

    def history(self) -> Any:
        """Returns the rows of metrics.jsonl: a pandas DataFrame if pandas is installed, otherwise a list of dicts.

        Raises:
            DataError: the run wrote no metrics.jsonl.

        >>> history = run.history()
        >>> history[history.split == "val"].plot("step", "loss")
        """
        rows = self.history_rows()
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def history_rows(self) -> List[Dict[str, Any]]:
        """Returns the rows of metrics.jsonl as dicts: step, epoch, split, loss, metrics and rates."""
        file = self.path / ROWS_FILE
        if not file.is_file():
            if self.folds:
                raise DataError(
                    f"{self.path} is a cross validation, and each fold has rows of its own: those of "
                    "run.folds[0], run.folds[1], ..."
                )
            raise DataError(NO_ROWS.format(file))
        return list(read_rows(file))

    @property
    def description(self) -> Description:
        """Returns the description of the run, with all settings as objects."""
        return self._restore().description

    @property
    def config(self) -> Config:
        """Returns all settings of the run as nested dicts."""
        return self.description.config

    @property
    def checkpoint(self) -> Checkpoint:
        """Returns the checkpoint in use."""
        return self._restore().checkpoint

    @property
    def signature(self) -> Signature:
        """Shapes, classes and preprocessing of the network's inputs and outputs."""
        return self._trained().signature

    @property
    def network(self) -> gluon.HybridBlock:
        """Returns a new copy of the network with the checkpoint's weights, in float32 on one device; yours to change.

        >>> run.network.save_parameters("network.params")
        """
        from mxtrain.training.trained import load_network

        with self._prepared("predict") as restored:
            network = load_network(restored.checkpoint, restored.description, restored.signature)
        for parameter in network.collect_params().values():
            parameter.grad_req = "write"  # loading for prediction has disabled gradients
        return network  # type: ignore[return-value]  # a user's Block need not be hybrid

    @with_parts(MeasuredParts)
    def evaluate(
        self,
        *overrides: str,
        split: Split = "auto",
        limit_batches: Optional[int] = None,
        dataset: Any = None,
        **parts: Unpack[MeasuredParts],
    ) -> Dict[str, float]:
        """Measures loss and metrics on a split; the same values as ``mxtrain eval`` prints. Writes no files.

        Args:
            overrides: of settings, e.g. ``"dataset.root=other"`` or ``"metric=[accuracy,cross_entropy]"``.
            split: ``"auto"`` is test if there is one, otherwise val.
            limit_batches: measures only the first batches; default: all.
            dataset: other samples to measure, for runs that were trained on arrays or Python datasets: ``(x, y)``, or a
                dataset whose items are ``(x, y)``.
            parts: groups by name, as of `train`: ``metric=["accuracy", "f1"]``. Objects belong to `load`.

        Raises:
            ConfigError: an override is wrong.
            DataError: there is no such split, or its files cannot be read.
        """
        if limit_batches is not None and (not isinstance(limit_batches, int) or limit_batches < 1):
            raise ConfigError(f"evaluate: limit_batches={limit_batches!r}: it must be a positive integer, or None.")
        typed, objects = read_arguments(parts, Run.evaluate)
        if objects:
            raise ConfigError(
                f"evaluate: {next(iter(objects.values))} is an object. Give it to load() or train(); evaluate takes "
                "the names of options and dicts of settings."
            )
        with self._prepared("eval", [*overrides, *typed], dataset) as restored:
            return dict(measure_run(restored, split, limit_batches, dataset is not None))

    def results(
        self, *overrides: str, split: Split = "auto", limit_batches: Optional[int] = None
    ) -> Iterator[Dict[str, Any]]:
        """Yields the result of each sample of a split, in order: the rows of ``predictions.csv`` of ``mxtrain eval``.

        A row has the keys ``file``, ``sample`` (index in the split) and ``loss``, and further ones by task, such as
        ``true``, ``predicted`` and ``probability``. If samples are weighted, ``weight`` is there as well, and the loss
        of the split is the weighted mean.

        Args:
            overrides: as of `evaluate`.
            split: as of `evaluate`.
            limit_batches: as of `evaluate`.

        >>> worst = sorted(run.results(split="val"), key=lambda row: -row["loss"])[:10]
        """
        with self._prepared("eval", overrides) as restored:
            from mxtrain.training.loaders import build_loader

            description, signature = restored.description, restored.signature
            name, source = choose_split(open_splits(restored.dataset), split)
            trained = restored.load()
            evaluator = trained.evaluator
            reader = ResultReader(description, signature, source, name, evaluator.decode)
            loader = build_loader(
                description, source, signature, trained.device, limit_batches=limit_batches, in_order=True
            )
            for batch, outputs in evaluator.predict(loader):
                losses = [loss.asnumpy() for loss in evaluator.losses(batch, outputs)]
                for _, row in reader.rows(batch, reader.predictions(batch, outputs), losses):
                    yield row

    def export(self, out: Optional[AnyPath] = None, **settings: Any) -> ExportReport:
        """Writes the network as ONNX into a new folder, with a proof that onnxruntime computes the same.

        Args:
            out: the folder; default: ``export`` in the run directory.
            settings: further ones of ``mxtrain export``, e.g. ``quantize="int8"`` or ``for_="triton"``.

        Raises:
            ConfigError: a setting is wrong, onnxruntime is not installed, or an operator has no conversion.
            DataError: the folder exists, or cannot be written.
            NotProven: onnxruntime computes something else.
            WorseThanAllowed: the metric of a quantized network is worse by more than ``max_loss``.

        >>> run.export("exported").errors
        """
        from mxtrain.workflows import export as workflow

        values = {**settings, **({} if out is None else {"out": absolute_path(out, "export: out")})}
        chosen = workflow.read_settings(values)
        with self._prepared("eval") as restored:
            return workflow.export(restored, chosen)

    def predict(self, inputs: Any, *, top_k: int = 3) -> Predictions:
        """Predicts for one input or for several; returns a row for each, as ``mxtrain predict`` writes it.

        Rows of paths have the key ``file``. The network stays loaded between calls. A JPEG file that is much larger
        than the input of the network is decoded at a reduced size, as in training; an array or `PIL.Image` of it is
        not, so its probabilities differ slightly.

        Args:
            inputs: one of these, or a list of one kind: a path of a file or folder (for tasks that read texts a
                ``pathlib.Path``, because a string is a text); an image (``PIL.Image``, or a uint8 array of shape
                (height, width) or (height, width, channels), or of a batch of these: (N, height, width) or (N, height,
                width, channels)); a string for tasks that read texts; a dict from column to value for rows of tables,
                or a data frame of pandas, in which None and NaN are missing values; a dict with ``question`` and
                ``context``; a dict with the id of a ``user`` for recommendations; an array of one sample or of several,
                for runs that were trained on arrays. An array of three axes is one image if its last axis has 1, 3 or 4
                elements, unless its last two axes are the size of the network's input.
            top_k: number of alternatives in each row, for tasks with several.

        Raises:
            ConfigError: the inputs are of a type that the dataset does not read.
            DataError: a file cannot be read, a row lacks a column or holds a wrong cell, or a number of an array is not
                finite.

        >>> run.predict(["a.png", "b.png"])[0]["class"]
        >>> run.predict("A film to remember.")[0]
        """
        if not self.description.task.predicts:
            raise ConfigError(f"predict: a run of task={self.description.task.name} predicts nothing. Use evaluate().")
        if not isinstance(top_k, int) or top_k < 1:
            raise ConfigError(f"predict: top_k={top_k!r}: it must be a positive integer.")
        trained = self._trained()
        with self._prepared("predict") as restored:
            return predict_objects(trained, restored.dataset, inputs, top_k)

    def batches(self, split: Split = "val", *overrides: str) -> Iterator[Dict[str, np.ndarray]]:
        """Yields the batches of a split, in order and without augmentation, as named arrays.

        Keys are ``input`` (or ``input0``, ``input1``, ... if the network has several), ``target`` likewise, and
        ``index``, the indices of the samples in the split, (B,).

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``.
            overrides: of settings, e.g. ``"dataset.eval_batch_size=8"``.
        """
        with self._prepared("eval", overrides) as restored:
            from mxtrain.engine.backend import mx
            from mxtrain.training.loaders import build_loader

            splits = open_splits(restored.dataset)
            _, source = choose_split(splits, split)
            require_same_names(restored.signature, splits)
            loader = build_loader(restored.description, source, restored.signature, mx.cpu())
        for batch in loader.epoch():
            yield {
                **_named("input", [array.asnumpy()[: batch.size] for array in batch.inputs]),
                **_named("target", [array.asnumpy()[: batch.size] for array in batch.targets]),
                **({} if batch.index_B is None else {"index": np.asarray(batch.index_B)[: batch.size]}),
            }

    def _restore(self, command: str = "predict", overrides: Sequence[str] = (), dataset: Any = None) -> RestoredRun:
        is_other = bool(overrides) or command != "predict"
        if self._restored is None or is_other:
            with preserved_process():
                found = self._open(command, overrides, dataset)
            if is_other:
                return found
            self._restored = found
        return self._restored

    def _open(self, command: str, overrides: Sequence[str], dataset: Any) -> RestoredRun:
        require_overrides(overrides, "evaluate" if command == "eval" else command)
        values = dict(self._objects.values)
        if dataset is not None:
            values["dataset"] = dataset
        return restore(
            self.path,
            which=self._which,
            overrides=overrides,
            config_dirs=folders_of(self._config_dir),
            trust_code=self._trusts_code,
            command=command,
            objects=values,
            replace=lambda config: objects_again(config, self._objects, dataset, str(self.path)),
        )

    @contextmanager
    def _prepared(self, command: str, overrides: Sequence[str] = (), dataset: Any = None) -> Iterator[RestoredRun]:
        """Yields the restored run in a context that restores the state of the process."""
        with preserved_process():
            restored = self._restore(command, overrides, dataset)
            # Again: `_restore` has undone it, and MXNet may be imported from here on.
            set_environment(restored.description)
            try:
                yield restored
            except LoaderError as error:
                raise DataError(str(error)) from error

    def _trained(self) -> Trained:
        if self._loaded is None:
            with self._prepared("predict") as restored:
                self._loaded = restored.load()
        return self._loaded


def _named(name: str, arrays: Sequence[np.ndarray]) -> Dict[str, np.ndarray]:
    return {name: arrays[0]} if len(arrays) == 1 else {f"{name}{number}": one for number, one in enumerate(arrays)}


def folders_of(config_dir: Optional[AnyPath]) -> List[str]:
    return [] if config_dir is None else [expand_path(text_of_path(config_dir, "config_dir"))]


def absolute_path(path: AnyPath, argument: str) -> str:
    return os.path.abspath(expand_path(text_of_path(path, argument)))


def text_of_path(path: AnyPath, argument: str) -> str:
    """Returns a path as a string. Raises a `ConfigError` for other types."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"{argument}={path!r:.60}: must be a path, and is a {type(path).__name__}.")
    return os.fspath(path)


# Commands on runs and data.


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
        trust_code: as of `load`.
        config_dir: as of `load`.

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
    paths = paths_in([first, second], "diff")

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
        trust_code: as of `load`.
        config_dir: as of `load`.

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

    require_overrides(overrides, "reproduce")
    values = {"strict": strict, "tolerance": tolerance}
    settings = validate_arguments(ReproduceSettings, values, "reproduce")
    recorded = read_recorded_run(Path(os.path.abspath(paths_in([run], "reproduce")[0])))
    words = [*overrides, *words_of_dir(dir, "reproduce")]
    folders = folders_of(config_dir)
    with run_dir_set_by("dir"), preserved_process(), Composer(folders) as composer:
        from mxtrain.cluster.launch.run import prepare_run

        composed = compose_recorded(recorded, words, composer, folders, trust_code)
        return reproduce_run(recorded, prepare_run(*composed, config_flags(folders)), settings)


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
        trust_code: as of `load`.
        config_dir: as of `load`.

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

    require_overrides(overrides, "replay")
    settings = validate_arguments(ReplaySettings, {"step": step}, "replay")
    _, source = find_step(Path(paths_in([bundle], "replay")[0]), settings.step)
    with preserved_process():
        return replay_step(source, StepRestorer(overrides, folders_of(config_dir), trust_code))


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

    require_overrides(overrides, "score")
    run_dir = None if dir is None else absolute_path(dir, "score: dir")
    folders = folders_of(config_dir)
    with run_dir_set_by("dir"), preserved_process(), Composer(folders) as composer:
        return score_run(*prepare_score([experiment], overrides, composer, run_dir, folders))


def tune(
    study: AnyPath,
    *overrides: str,
    n_trials: Optional[int] = None,
    report: Callable[[str], object] = lambda line: None,
    trust_code: bool = False,
    config_dir: Optional[AnyPath] = None,
    **settings: Any,
) -> StudyResult:
    """Looks for the best settings over many trials, as ``mxtrain tune``. The same call continues a study.

    Each trial is trained in a process of its own; it writes a run directory below the folder of the study.
    KeyboardInterrupt ends it after the current run has saved.

    Args:
        study: folder of the study.
        overrides: ranges, e.g. ``"optimizer.lr=log(1e-4,1e-1)"`` or ``"model=choice(mlp,lenet)"``, and overrides of
            all trials; none continues the study in the folder.
        n_trials: trials of the study in all; default: 20, or a whole grid. A larger number later adds some.
        report: receives a line about each trial, e.g. ``print``.
        trust_code: whether code that only an existing study names may run.
        config_dir: folder with further groups and options.
        settings: further ones of the command: ``sampler``, ``pruner``, ``reduction``, ``min_epochs``, ``min_steps``,
            ``objectives``, ``seed``, ``space``, ``storage``.

    Returns:
        The study: ``best_run`` and ``best_trial`` (None if no trial was trained to its end), ``trials``, best first,
        each with ``settings``, ``values``, ``state``, ``step`` and ``path``; ``rows()`` and ``frame()`` as a table.

    Raises:
        ConfigError: the study is invalid, or differs from the one in the folder; nothing was started.
        MxtrainError: a trial was refused, or its process received a signal.

    >>> found = mxtrain.tune("outputs/study", "optimizer.lr=choice(0.01,0.1)", "model=mlp", "debug=fast", n_trials=2)
    >>> found.best_run, found.best_trial.settings["optimizer.lr"], len(found.trials)
    """
    from mxtrain.cluster.launch.study import begin_study, open_study
    from mxtrain.tuning.folder import StudyFolder
    from mxtrain.tuning.spec import TuneSettings
    from mxtrain.tuning.trials import require_optuna
    from mxtrain.workflows.tune import resume_study, train_study

    require_overrides(overrides, "tune")
    typed = {**settings, **({} if n_trials is None else {"n_trials": n_trials})}
    chosen = validate_arguments(TuneSettings, typed, "tune")
    require_optuna()
    folder, folders = StudyFolder(Path(absolute_path(study, "tune: study"))), folders_of(config_dir)
    with preserved_process():
        if folder.exists and not overrides and chosen.space is None:
            description = open_study(folder, chosen, list(typed), folders, trust_code)
        else:
            description = begin_study(folder, chosen, overrides, folders)
        return train_study(folder, resume_study(folder, description, chosen), report)


def check_data(
    *overrides: str,
    ignore: Union[str, Sequence[str]] = (),
    output: Optional[AnyPath] = None,
    config_dir: Optional[AnyPath] = None,
) -> DataCheck:
    """Reads everything of a dataset once, and collects all that is wrong with it, as ``mxtrain data check``.

    Problems are the result, not an error: see `DataCheck.passed`. MXNet is not needed.

    Args:
        overrides: the dataset and its settings, e.g. ``"dataset=cifar10"``, ``"dataset.root=FOLDER"``.
        ignore: kinds of problems that do not count, e.g. ``["duplicate", "empty_text"]``.
        output: file for all problems: CSV if its name ends so, else a JSON object a line.
        config_dir: folder with further groups and options.

    Returns:
        ``passed``, ``num_problems`` of each kind, the first 20 ``problems`` of each kind, with ``kind``, ``place``,
        ``fact`` and ``remedy``, and ``counts.num_samples`` of each split.

    Raises:
        ConfigError: an override or a kind is wrong.
        DataError: the file cannot be written.

    >>> found = mxtrain.check_data("dataset=digits")
    >>> found.passed, found.num_problems, found.counts.num_samples
    """
    from mxtrain.composing.environment import compose_dataset
    from mxtrain.workflows.check_data import CheckDataSettings, check_data_of

    require_overrides(overrides, "check_data")
    kinds = ignore if isinstance(ignore, str) else ",".join(ignore)
    values = {"ignore": kinds, **({} if output is None else {"output": absolute_path(output, "check_data: output")})}
    settings = validate_arguments(CheckDataSettings, values, "check_data")
    with preserved_process(), Composer(folders_of(config_dir)) as composer:
        name, dataset = compose_dataset(composer, overrides)
        return check_data_of(dataset, name, settings)


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

    require_overrides(overrides, "push")
    path = Path(paths_in([run], "push")[0])
    with preserved_process(), Composer(folders_of(config_dir)) as composer:
        return push_run(path, tracker_of(tracker, overrides, composer))


def words_of_dir(run_dir: Optional[AnyPath], function: str) -> List[str]:
    """Returns the override of the run directory; none by default."""
    return [] if run_dir is None else [f"hydra.run.dir={quote(absolute_path(run_dir, f'{function}: dir'))}"]
