"""A run directory, with its results and its network."""

from __future__ import annotations

import inspect
import math
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Union

import numpy as np
from typing_extensions import Unpack

from mxtrain.api.arguments import (
    AnyPath,
    Split,
    Which,
    absolute_path,
    folders_of,
    optional_path,
    require_count,
    require_flag,
    without_none,
)
from mxtrain.archive.registry import KILLED
from mxtrain.archive.run_files import ROWS_FILE, STATUS_FILE
from mxtrain.archive.run_records import read_rows
from mxtrain.archive.status import read_status_object
from mxtrain.checkpoint.run_directory import is_locked
from mxtrain.cluster.launch.preserved import preserved_process
from mxtrain.composing.environment import set_environment
from mxtrain.composing.objects import Objects, match_objects, read_arguments, require_overrides
from mxtrain.composing.parts import EvaluatedParts, LoadedParts, PassArguments, with_parts
from mxtrain.composing.restored import restore
from mxtrain.config.placeholders import Given
from mxtrain.data.spec import choose_split, open_splits
from mxtrain.errors import ConfigError, DataError, LoaderError, did_you_mean
from mxtrain.logger.jsonl import NO_ROWS
from mxtrain.task.fit import require_same_names
from mxtrain.task.sample_results import ResultReader
from mxtrain.training.fold_results import read_folds
from mxtrain.workflows.evaluate import load_for, measure_run
from mxtrain.workflows.passes import PassSettings, read_passes
from mxtrain.workflows.predict import Predictions, predict_objects

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.checkpoint import Checkpoint
    from mxtrain.config.groups import Description
    from mxtrain.data.signature import Signature
    from mxtrain.exporting.pytorch.weights import WrittenWeights
    from mxtrain.exporting.run import ExportReport
    from mxtrain.training.restored_run import RestoredRun
    from mxtrain.training.trained import Trained
    from mxtrain.types.annotations import Config, JsonObject

NO_OBJECTS = Objects()


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
    overrides, given = read_arguments(objects, load, only_objects=True)
    if overrides:
        raise ConfigError(f"load: {overrides[0]}: load takes objects. Give settings to evaluate().")
    run = Run(Path(absolute_path(path, "load: path")), which, trust_code, config_dir, given)
    if run.folds:
        return run
    model = run.description.model  # opens the checkpoint, and refuses untrusted code that it names
    if isinstance(model, Given):
        model.require()
    if run.checkpoint.step == 0:
        warnings.warn(f"{run.path}: its only checkpoint is of step 0: the network has learned nothing.", stacklevel=2)
    return run


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
        require_flag(trust_code, "trust_code")
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
        return read_status_object(self.path) or read_folds(self.path) or {}

    @property
    def folds(self) -> List[Run]:
        """Returns the runs of a cross validation, one for each fold that has ended; empty for an ordinary run.

        For a cross validation, `metrics` are the means over its folds, and ``status["std"]`` their standard deviations.

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
        """``"finished"``, ``"stopped_early"``, ``"interrupted"``, ``"pruned"``, ``"failed"``, ``"running"``, or
        ``"killed"`` if its process has ended without writing a final state; empty if unknown."""
        state = str(self.status.get("state", ""))
        if state == "running" and (self.path / STATUS_FILE).is_file() and not is_locked(self.path):
            return KILLED
        return state

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
        recorded = self.status.get("metrics")
        metrics: Dict[str, float] = {}
        for name, value in recorded.items() if isinstance(recorded, Mapping) else ():
            if value is None or isinstance(value, (int, float)):
                metrics[name] = math.nan if value is None else value  # JSON holds an undefined value as null
        return metrics

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
        """Returns a new copy of the network with the checkpoint's weights, in float32 on one device. You may change it.

        >>> run.network.save_parameters("network.params")
        """
        from mxtrain.training.trained import load_network

        with prepared(self, "predict") as restored:
            network = load_network(restored.checkpoint, restored.description, restored.signature)
        for parameter in network.collect_params().values():
            parameter.grad_req = "write"  # loading for prediction has disabled gradients
        return network  # type: ignore[return-value]  # a user's Block need not be hybrid

    @with_parts(EvaluatedParts)
    def evaluate(
        self,
        *overrides: str,
        split: Split = "auto",
        limit_batches: Optional[int] = None,
        dataset: Any = None,
        **parts: Unpack[EvaluatedParts],
    ) -> Dict[str, float]:
        """Measures loss and metrics on a split; the same values as ``mxtrain eval`` prints. Writes no files.

        Args:
            overrides: of settings, e.g. ``"dataset.root=other"`` or ``"metric=[accuracy,cross_entropy]"``.
            split: ``"auto"`` is test if there is one, otherwise val.
            limit_batches: measures only the first batches; default: all.
            dataset: other samples to measure, for runs that were trained on arrays or Python datasets: ``(x, y)``, or a
                dataset whose items are ``(x, y)``.
            parts: groups by name, as for `train`: ``metric=["accuracy", "f1"]``. Objects belong to `load`. Also
                ``augment``, ``augment_scales``, ``tile``, ``tile_overlap`` and ``tile_blend`` of ``mxtrain eval``, e.g.
                ``augment=["flip", "scales"]`` or ``tile=512``.

        Raises:
            ConfigError: an override is wrong.
            DataError: there is no such split, or its files cannot be read.
        """
        require_count(limit_batches, "evaluate: limit_batches", or_none=True)
        passes = {name: value for name, value in parts.items() if name in PassArguments.__annotations__}
        settings = _read_passes(Run.evaluate, passes)
        part_overrides, objects = read_arguments(
            {name: value for name, value in parts.items() if name not in passes}, Run.evaluate
        )
        if objects:
            raise ConfigError(
                f"evaluate: {next(iter(objects.values))} is an object. Give it to load() or train(); evaluate takes "
                "the names of options and dicts of settings."
            )
        with prepared(self, "eval", [*overrides, *part_overrides], dataset) as restored:
            return dict(measure_run(restored, split, limit_batches, dataset is not None, settings))

    @with_parts(PassArguments)
    def results(
        self,
        *overrides: str,
        split: Split = "auto",
        limit_batches: Optional[int] = None,
        **passes: Unpack[PassArguments],
    ) -> Iterator[Dict[str, Any]]:
        """Yields the result of each sample of a split, in order: the rows of ``predictions.csv`` of ``mxtrain eval``.

        A row has the keys ``file``, ``sample`` (index in the split) and ``loss``, and further ones by task, such as
        ``true``, ``predicted`` and ``probability``. If samples are weighted, ``weight`` is there as well, and the loss
        of the split is the weighted mean.

        Args:
            overrides: see `evaluate`.
            split: see `evaluate`.
            limit_batches: see `evaluate`.
            passes: ``augment``, ``tile`` and others, see `evaluate`.

        >>> worst = sorted(run.results(split="val"), key=lambda row: -row["loss"])[:10]
        """
        require_count(limit_batches, "results: limit_batches", or_none=True)
        settings = _read_passes(Run.results, passes)
        with prepared(self, "eval", overrides) as restored:
            from mxtrain.training.loaders import build_loader

            plan = settings.passes(restored.description, restored.signature)
            restored = plan.for_run(restored)
            splits = open_splits(restored.dataset)
            name, source = choose_split(splits, split)
            trained = plan.for_samples(load_for(restored, splits), source, limit_batches)
            description, signature, evaluator = trained.description, trained.signature, trained.evaluator
            reader = ResultReader(description, signature, source, name, evaluator.decode)
            loader = build_loader(
                description, source, signature, trained.device, limit_batches=limit_batches, in_order=True
            )
            for batch, outputs in evaluator.predict(loader):
                losses = [loss.asnumpy() for loss in evaluator.losses(batch, outputs)]
                for _, row in reader.rows(batch, reader.predictions(batch, outputs), losses):
                    yield row

    def export(self, out: Optional[AnyPath] = None, **settings: Any) -> Union[ExportReport, WrittenWeights]:
        """Writes the network as ONNX into a new folder, with a proof that onnxruntime computes the same; or weights.

        Args:
            out: the folder; default: ``export`` in the run directory.
            settings: further ones of ``mxtrain export``, e.g. ``quantize="int8"`` or ``for_="triton"``;
                ``for_="pytorch"`` writes code and weights for PyTorch, ``for_="safetensors"`` the weights alone.

        Raises:
            ConfigError: a setting is wrong, onnxruntime is not installed, or an operator has no conversion.
            DataError: the folder exists, or cannot be written.
            NotProven: onnxruntime computes something else.
            WorseThanAllowed: the metric of a quantized network is worse by more than ``max_loss``.

        >>> run.export("exported").errors
        """
        from mxtrain.workflows import export as workflow

        chosen = workflow.read_settings({**settings, **without_none(out=optional_path(out, "export: out"))})
        with prepared(self, "eval") as restored:
            return workflow.export(restored, chosen)

    @with_parts(PassArguments)
    def predict(
        self,
        inputs: Any,
        *,
        top_k: int = 3,
        **passes: Unpack[PassArguments],
    ) -> Predictions:
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
            passes: ``augment``, ``tile`` and others, see `evaluate`.

        Raises:
            ConfigError: the inputs are of a type that the dataset does not read.
            DataError: a file cannot be read, a row lacks a column or holds a wrong cell, or a number of an array is not
                finite.

        >>> run.predict(["a.png", "b.png"])[0]["class"]
        >>> run.predict("A film to remember.")[0]
        """
        if not self.description.task.predicts:
            raise ConfigError(f"predict: a run of task={self.description.task.name} predicts nothing. Use evaluate().")
        require_count(top_k, "predict: top_k")
        settings = _read_passes(Run.predict, passes)
        trained = self._trained()
        with prepared(self, "predict") as restored:
            plan = settings.passes(restored.description, restored.signature)
            if plan.task is not None:
                trained = plan.for_run(restored).load(exported=True)
            return predict_objects(trained, restored.dataset, inputs, top_k, plan)

    def batches(self, split: Split = "val", *overrides: str) -> Iterator[Dict[str, np.ndarray]]:
        """Yields the batches of a split, in order and without augmentation, as named arrays.

        Keys are ``input`` (or ``input0``, ``input1``, ... if the network has several), ``target`` likewise, and
        ``index``, the indices of the samples in the split, (B,).

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``.
            overrides: of settings, e.g. ``"dataset.eval_batch_size=8"``.
        """
        with prepared(self, "eval", overrides) as restored:
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
        """Opens the run for a command, see `prepared`. The run as it was trained is opened once and kept."""
        is_unchanged = command == "predict" and not overrides
        if is_unchanged and self._restored is not None:
            return self._restored
        with preserved_process():
            restored = self._open(command, overrides, dataset)
        if is_unchanged:
            self._restored = restored
        return restored

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
            replace=lambda config: match_objects(config, self._objects, dataset, str(self.path)),
        )

    def _trained(self) -> Trained:
        if self._loaded is None:
            with prepared(self, "predict") as restored:
                self._loaded = restored.load(exported=True)
        return self._loaded


@contextmanager
def prepared(run: Run, command: str, overrides: Sequence[str] = (), dataset: Any = None) -> Iterator[RestoredRun]:
    """Yields a restored run in a context in which MXNet may be used, and that restores the state of the process.

    Args:
        run: the run.
        command: name of the corresponding command, for messages and for the settings that it accepts.
        overrides: changes of the run's description.
        dataset: other data to evaluate; None: those of the run.
    """
    with preserved_process():
        restored = run._restore(command, overrides, dataset)
        # `_restore` has put the environment back. MXNet reads it when it is imported, which may be in the `with` block.
        set_environment(restored.description)
        try:
            yield restored
        except LoaderError as error:
            raise DataError(str(error)) from error


def _read_passes(method: Callable[..., Any], passes: Mapping[str, Any]) -> PassSettings:
    """Reads the keyword arguments of a method that are settings of passes.

    Raises:
        ConfigError: there is no such argument, or one is wrong.
    """
    allowed = [name for name in inspect.signature(method).parameters if name != "self"]
    for name in passes:
        if name not in PassArguments.__annotations__:
            raise ConfigError(
                f"{method.__name__}() has no argument '{name}'.{did_you_mean(name, allowed)} It takes "
                f"{', '.join(allowed)}."
            )
    return read_passes(method.__name__, passes)


def _named(name: str, arrays: Sequence[np.ndarray]) -> Dict[str, np.ndarray]:
    return {name: arrays[0]} if len(arrays) == 1 else {f"{name}{number}": one for number, one in enumerate(arrays)}
