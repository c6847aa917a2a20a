"""Uses trained networks: `evaluate`, `predict`, `average`, `soup`, `export`, `check_export`, `slim`."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Union

from typing_extensions import Unpack

from mxtrain.api.arguments import (
    AnyPath,
    Split,
    Which,
    absolute_path,
    optional_path,
    read_call,
    require_flag,
    without_none,
)
from mxtrain.api.run import Run, load, prepared
from mxtrain.archive.run_folders import paths_in
from mxtrain.cluster.launch.preserved import preserved_process
from mxtrain.composing.parts import EvaluatedParts, PassArguments, with_parts
from mxtrain.composing.restored import restore
from mxtrain.config.specs import validate_arguments
from mxtrain.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from mxtrain.exporting.pytorch.weights import WrittenWeights
    from mxtrain.exporting.run import ExportReport
    from mxtrain.training.slimming import SlimReport
    from mxtrain.workflows.predict import Predictions


@with_parts(EvaluatedParts)
def evaluate(
    run: Union[AnyPath, Run],
    *overrides: str,
    split: Split = "auto",
    limit_batches: Optional[int] = None,
    dataset: Any = None,
    **parts: Unpack[EvaluatedParts],
) -> Dict[str, float]:
    """Evaluates a run, or loads and evaluates the run at a path; see `Run.evaluate` and `load`.

    >>> mxtrain.evaluate("outputs/mlp", split="val")["accuracy"]
    """
    return _loaded(run).evaluate(*overrides, split=split, limit_batches=limit_batches, dataset=dataset, **parts)


@with_parts(PassArguments)
def predict(run: Union[AnyPath, Run], inputs: Any, *, top_k: int = 3, **passes: Unpack[PassArguments]) -> Predictions:
    """Predicts with a run, or loads the run at a path and predicts with it; see `Run.predict` and `load`.

    >>> mxtrain.predict("outputs/mlp", "digit.png")[0]["class"]
    """
    return _loaded(run).predict(inputs, top_k=top_k, **passes)


def average(
    runs: Union[AnyPath, Run, Sequence[Union[AnyPath, Run]]],
    *overrides: str,
    method: Optional[str] = None,
    last: int = 5,
    which: Which = "best",
    out: Optional[AnyPath] = None,
    trust_code: bool = False,
    config_dir: Optional[AnyPath] = None,
) -> Run:
    """Averages the weights of the last checkpoints of one run, or of several runs (a model soup), writes the average as
    a checkpoint, and opens it.

    Several runs must have the same network. They are measured on the validation split of the first one.

    Args:
        runs: a run or its directory; or two or more of these, or of checkpoints, in a list.
        overrides: for several runs, settings of the evaluation, e.g. ``"dataset.eval_batch_size=256"``.
        method: for several runs; ``"greedy"``, the default, adds a run, best first, if the mean is at least as good;
            ``"uniform"`` averages all.
        last: for one run, number of the newest checkpoints, which must have been kept (``checkpoint.keep_last``).
        which: for several runs, the checkpoint of each run to use: its best or its last one.
        out: for several runs, folder of the new checkpoint; default: ``averaged/METHOD-soup`` in the first run.
        trust_code: see `load`.
        config_dir: see `load`.

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

    is_one = isinstance(runs, (str, os.PathLike, Run))
    paths = [absolute_path(path, "average: runs") for path in paths_in([runs], "average")]
    call = read_call(average, overrides, config_dir)
    require_flag(trust_code, "average: trust_code")
    if method not in (None, "greedy", "uniform"):
        near = did_you_mean(str(method), ("greedy", "uniform"))
        raise ConfigError(f"average: method={method!r:.60}: it may be 'greedy' or 'uniform'.{near}")
    if not is_one and len(paths) < 2:
        raise ConfigError("average: a list has two runs at least. To average the last checkpoints of one run, give it.")
    chosen: Dict[str, Any] = {"last": last} if is_one else {"soup": method or "greedy", "which": which}
    values = {**chosen, **without_none(out=optional_path(out, "average: out"))}
    settings = validate_arguments(AverageSettings, values, "average")
    unused = without_none(method=method, out=out, overrides=overrides or None) if is_one else {}
    if unused:
        name = next(iter(unused))
        raise ConfigError(f"average: {name} is for averages of several runs. Give a list of runs, or leave it out.")
    open_run = functools.partial(
        restore,
        which=which,
        overrides=call.overrides,
        config_dirs=call.folders,
        trust_code=trust_code,
        command="average",
        settings=AverageSettings.model_fields,
    )

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=3)

    with preserved_process():
        if is_one:
            path = average_last(Path(paths[0]), settings.last, open_run, warn).path
        else:
            path = average_runs(paths, settings, open_run, warn).path
    return load(path, trust_code=trust_code, config_dir=config_dir)


def soup(
    runs: Sequence[Union[AnyPath, Run]],
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
    paths = [runs] if isinstance(runs, (str, os.PathLike, Run)) else runs
    return average(paths, *overrides, method=method, which=which, out=out, trust_code=trust_code, config_dir=config_dir)


def export(
    run: Union[AnyPath, Run], out: Optional[AnyPath] = None, **settings: Any
) -> Union[ExportReport, WrittenWeights]:
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

    values = without_none(out=optional_path(out, "slim: out"))
    settings = validate_arguments(workflow.SlimSettings, values, "slim")
    with prepared(_loaded(run), "slim") as restored:
        return workflow.slim(restored, settings)


def _loaded(run: Union[AnyPath, Run]) -> Run:
    return run if isinstance(run, Run) else load(run)
