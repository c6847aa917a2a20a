"""Evaluates a trained network on a split: loss and metrics, artifacts of its task, corruptions and explanations."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.checkpoint import Checkpoint, refuse_links
from mxtrain.checkpoint.folder import AVERAGED, run_dir_of
from mxtrain.config.placeholders import Given
from mxtrain.data.spec import choose_split, open_splits, warn_unseen
from mxtrain.errors import ConfigError, DataError, LoaderError, did_you_mean
from mxtrain.runtime.memory import trim_memory
from mxtrain.task.fit import require_known_names, require_same_names
from mxtrain.task.report import Report
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.types import Artifact, Positive
from mxtrain.workflows.eval_folder import EvaluationFolder, SampleFiles
from mxtrain.workflows.output_file import OutputFolder, require_writable
from mxtrain.workflows.passes import ONE_PASS, PassSettings

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.spec import BaseDataset, Samples, Splits
    from mxtrain.task.explained import Attribution
    from mxtrain.task.sample_results import SampleResults
    from mxtrain.training.attribution import LargestLosses, Method
    from mxtrain.training.restored_run import RestoredRun
    from mxtrain.training.trained import Trained
    from mxtrain.types import Batch
    from mxtrain.types.annotations import Json

ALL = "all"
MAX_EXPLAINED = 256
EXPLAINED_AT_A_TIME = 8
"""Batch size of explanations. It is small because all activations are kept until gradients are computed."""


def read_names(value: object) -> object:
    """Splits text such as `noise`, `noise,blur` or `[noise, blur]` into unique names. Other values are returned as is.

    Raises:
        ValueError: there is no name.
    """
    if not isinstance(value, str):
        return value
    names = [name.strip() for name in value.strip("[] ").split(",") if name.strip()]
    if not names:
        raise ValueError(f"name a corruption, or {ALL}, or leave corrupt out")
    return list(dict.fromkeys(names))


def choose_corruptions(names: Sequence[str], dataset: BaseDataset) -> List[Tuple[str, int]]:
    """Returns the corruptions to measure as (name, severity), for all severities; all corruptions if `all` is named.

    Raises:
        ConfigError: the dataset has no such corruption.
    """
    allowed = dataset.signature_class.corruptions()
    if names and not allowed:
        gives = dataset.gives.sample.name or "something else"
        raise ConfigError(
            f"corrupt={names[0]}: it changes the pixels of images, and the dataset gives {gives}. Leave corrupt out."
        )
    for name in names:
        if name not in (*allowed, ALL):
            raise ConfigError(
                f"eval.corrupt={name}: there is no corruption '{name}'.{did_you_mean(name, [*allowed, ALL])} It can be "
                f"{ALL}, or one or several of {', '.join(allowed)}."
            )
    chosen = allowed if ALL in names else names
    return [(name, severity) for name in chosen for severity in allowed[name].severities]


METHODS = ("grad_cam", "integrated_gradients")
EXPLAINED, CORRUPTED = "explain_{}", "corrupt"
"""Folders, inside that of an evaluation, for the results of further analyses."""


class EvalSettings(PassSettings):
    """Settings of `eval` besides overrides."""

    split: Literal["auto", "train", "val", "test"] = "auto"
    """Split to measure; auto = test if there is one, else val."""
    which: Literal["best", "last"] = "best"
    """The checkpoint of a run to use: its last or its best one."""
    limit_batches: Optional[Positive] = None
    """Number of batches to measure, for quick trials; null = all."""
    output: Optional[OutputFolder] = None
    """Folder for the results; default: in the run directory eval/<split>, of an average eval/averaged/NAME/<split>."""
    explain: Optional[Literal["grad_cam", "integrated_gradients"]] = None
    """Attribution method, which draws the parts of a few samples that determine their predictions; null = none."""
    explain_samples: Annotated[int, pydantic.Field(gt=0, le=MAX_EXPLAINED)] = 16
    """Number of samples to explain: those with the largest loss."""
    explain_layer: str = "auto"
    """Layer whose output grad_cam uses, by structural name; auto = the last layer with a map, see `find_layer`."""
    fuse: bool = False
    """Join operators on a CPU (oneDNN): faster for most convolutional networks, and equal but for the last bits. The
    first batch of each shape is computed both ways; where they differ by more than 1e-5, nothing is joined."""
    corrupt: Annotated[Optional[List[str]], pydantic.BeforeValidator(read_names)] = None
    """Corruptions with which the split is measured again, at severities 1 to 5; all = every corruption; null = none."""

    @pydantic.model_validator(mode="after")
    def _check_used(self) -> EvalSettings:
        typed = self.model_fields_set
        if self.explain is None and typed & {"explain_samples", "explain_layer"}:
            name = sorted(typed & {"explain_samples", "explain_layer"})[0]
            raise ValueError(f"{name} says how to explain, so type explain=grad_cam, or leave {name} out")
        if self.explain == "integrated_gradients" and "explain_layer" in typed:
            raise ValueError("explain=integrated_gradients looks at no layer: leave explain_layer out")
        for name in ("augment", "tile"):
            if self.explain is not None and getattr(self, name) is not None:
                raise ValueError(f"explain explains one pass of the network: leave {name} out, or explain")
        if self.corrupt is not None and self.tile is not None:
            raise ValueError("corrupt changes images in the size of the network's input: leave tile out, or corrupt")
        return self


@dataclass(frozen=True)
class EvalPart:
    """One analysis of an evaluation: of the split itself, of corrupted samples, or explanations of single samples.

    Attributes:
        title: heading; empty for the analyses of the whole split.
        artifacts: tables, figures and other content, which was written as files.
        warning: sentence about what the results lack; empty: nothing.
    """

    title: str
    artifacts: Sequence[Artifact]
    warning: str = ""


@dataclass(frozen=True)
class EvalResult:
    """Result of `evaluate`.

    Attributes:
        split: name of the split.
        step: step of the checkpoint.
        values: loss and metrics by name, and samples_per_s.
        coverage: the part of the split that was measured; empty for all of it.
        num_samples: number of samples that were measured.
        folder: folder of the written files.
        parts: the analyses; the first one is that of the split itself.
        passes: the settings of several passes, as typed; empty for one.
    """

    split: str
    step: int
    values: Mapping[str, float]
    coverage: str
    num_samples: int
    folder: Path
    parts: Sequence[EvalPart]
    passes: str = ""

    def with_part(self, part: EvalPart) -> EvalResult:
        """Returns the result with one more analysis."""
        return replace(self, parts=(*self.parts, part))


def no_report(result: EvalResult) -> None:
    """Receives nothing; the default of `evaluate`."""


def evaluate(
    run: RestoredRun,
    settings: EvalSettings,
    progress: WorkProgress = SILENT,
    report: Callable[[EvalResult], None] = no_report,
) -> EvalResult:
    """Measures a split, and writes all results as files.

    Args:
        run: the run.
        settings: settings; `which` has chosen the checkpoint of the run already.
        progress: shows long analyses.
        report: called after each analysis with the result so far, whose last part is new.

    Raises:
        ConfigError: a setting does not fit the run, or the folder cannot be written.
        DataError: there is no such split, its files cannot be read, or the results cannot be written.
    """
    if settings.explain is not None:
        run.description.task.check_explained(run.description)
    passes = choose_corruptions(settings.corrupt or (), run.description.dataset)
    plan = settings.passes(run.description, run.signature)
    run = plan.for_run(run)
    splits = open_splits(run.dataset)
    split, source = choose_split(splits, settings.split)
    corruptions = run.dataset.signature_class.corruptions()
    corrupted = {(name, severity): corruptions[name].apply(source, severity) for name, severity in passes}
    folder = Path(settings.output) if settings.output else default_folder(run.checkpoint, split)
    # Imports MXNet: only from here on.
    from mxtrain.training.attribution import LargestLosses

    if not run.description.task.export_form().open_set:
        require_same_names(run.signature, splits)
    warn_unseen(source, run.signature)
    method = None if settings.explain is None else load_method(settings, run, uses_exported(run, splits))
    trained = plan.for_samples(load_for(run, splits, settings.fuse), source, settings.limit_batches)
    largest_losses = None if method is None else LargestLosses(trained.evaluator)
    title = ", ".join([f"{split}, step {run.checkpoint.step}", *([settings.text] if settings.text else [])])
    try:
        eval_folder = EvaluationFolder(folder)
        with closing(SampleFiles(trained, source, split)) as samples:
            # The split itself is not corrupted, so the measured samples are the original ones.
            measured = measure(trained, source, source, settings.limit_batches, largest_losses, samples.results)
            facts: Dict[str, Json] = {
                "split": split,
                "part": measured.coverage,
                "step": run.checkpoint.step,
                "samples": measured.num_samples,
                **settings.facts(),
            }
            trim_memory()  # reports are drawn beside the network: its batches make room for Matplotlib
            artifacts = measured.report.artifacts(title)
            with eval_folder.new_results():
                eval_folder.write(artifacts)
                samples.write(eval_folder, title)
                eval_folder.write_values({**facts, **measured.values})

        result = EvalResult(
            split,
            run.checkpoint.step,
            measured.values,
            measured.coverage,
            measured.num_samples,
            folder,
            (EvalPart("", artifacts),),
            settings.text,
        )
        report(result)
        if corrupted:
            artifacts = measure_corruptions(measured, trained, corrupted, source, settings, title, progress)
            write_part(artifacts, facts, folder / CORRUPTED)
            result = result.with_part(EvalPart("", artifacts))
            report(result)
        if method is not None and largest_losses is not None:
            indices = largest_losses.indices(settings.explain_samples)
            artifacts, warning = explain_samples(trained, method, source, indices, title, progress)
            write_part(artifacts, facts, folder / EXPLAINED.format(settings.explain))
            title_of_part = f"{method.title}, the samples of the largest loss"
            result = result.with_part(EvalPart(title_of_part, artifacts, warning))
            report(result)
    except LoaderError as error:
        raise DataError(str(error)) from error  # nothing was trained
    return result


def measure_run(
    run: RestoredRun,
    split: str = "auto",
    limit_batches: Optional[int] = None,
    is_other_data: bool = False,
    passes: PassSettings = ONE_PASS,
) -> Mapping[str, float]:
    """Returns loss and metrics of a split; writes no files.

    Args:
        run: the run.
        split: name of the split; "auto" is test if there is one, otherwise val.
        limit_batches: number of batches; None = all.
        is_other_data: True for data that need not have all classes of the training.
        passes: settings of several passes.

    Raises:
        ConfigError: the loss or a metric is an object that was not given again.
        DataError: there is no such split, or its files cannot be read.
    """
    for part in (run.description.loss, *run.description.metric.values()):
        if isinstance(part, Given):
            part.require()
    plan = passes.passes(run.description, run.signature)
    run = plan.for_run(run)
    splits = open_splits(run.dataset)
    _, source = choose_split(splits, split)
    if not run.description.task.export_form().open_set:
        (require_known_names if is_other_data else require_same_names)(run.signature, splits)
    warn_unseen(source, run.signature)
    trained = plan.for_samples(load_for(run, splits), source, limit_batches)
    return measure(trained, source, source, limit_batches).values


def load_for(run: RestoredRun, splits: Splits, fuse: bool = False) -> Trained:
    """Loads the network of a run for an evaluation.

    If the classes of the data are not those of the training, which only some tasks allow (`TaskExport.open_set`), only
    the part of the network that does not depend on classes is returned.

    Args:
        run: the run.
        splits: the data to evaluate.
        fuse: see `load_trained`.
    """
    trained = run.load(fuse, exported=uses_exported(run, splits))
    if not has_other_classes(run, splits):
        return trained
    return replace(trained, signature=replace(trained.signature, class_names=list(splits.class_names)))


def has_other_classes(run: RestoredRun, splits: Splits) -> bool:
    """Returns True if the task measures data of other classes than those of the training, and these are."""
    is_open = run.description.task.export_form().open_set
    return is_open and list(run.signature.learned_names) != list(splits.class_names)


def uses_exported(run: RestoredRun, splits: Splits) -> bool:
    """Returns True if an evaluation needs only the part of the network that `export` writes."""
    return has_other_classes(run, splits) or run.description.task.export_form().evaluates


def default_folder(checkpoint: Checkpoint, split: str) -> Path:
    """Returns the folder for results of a checkpoint in its run directory; results of an average do not replace those
    of the run.

    Raises:
        RunDirectoryError: the path is a symbolic link.
        ConfigError: nothing can be written there.
    """
    is_average = "averaged_steps" in checkpoint.state
    parts = ["eval", *([AVERAGED, checkpoint.path.name] if is_average else []), split]
    run_dir = run_dir_of(checkpoint.path)
    below = [CORRUPTED, *(EXPLAINED.format(method) for method in METHODS)]
    folders = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    refuse_links(run_dir, [*folders, *(f"{folders[-1]}/{name}" for name in below)])
    return require_writable(run_dir.joinpath(*parts), "output")


@dataclass(frozen=True)
class Measured:
    """Results of a pass over a split."""

    values: Mapping[str, float]
    report: Report
    coverage: str
    """The part of the split that was measured; empty for all of it."""
    num_samples: int


def measure(
    trained: Trained,
    source: Samples,
    original: Samples,
    limit_batches: Optional[int],
    largest_losses: Optional[LargestLosses] = None,
    samples: Optional[SampleResults] = None,
) -> Measured:
    """Measures loss and metrics in one pass over a split.

    Args:
        trained: trained network.
        source: samples to measure, possibly corrupted.
        original: the same samples without corruption, for reports that read their files.
        limit_batches: number of batches; None = the whole split.
        largest_losses: receives every batch; None if the samples with the largest losses are not needed.
        samples: receives every batch; None if the results of single samples are not needed.
    """
    from mxtrain.training.loaders import build_loader

    description, signature = trained.description, trained.signature
    loader = build_loader(description, source, signature, trained.device, limit_batches=limit_batches)
    report = description.task.build_report(description, signature, original)
    # The evaluator's function decodes each batch once for all callers.
    if trained.evaluator.decode is not None:
        report.decode_by(trained.evaluator.decode)

    def watch(batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        report.update(batch, outputs)
        if largest_losses is not None:
            largest_losses.update(batch, outputs)
        if samples is not None:
            samples.update(batch, outputs)

    values = trained.evaluator.measure(loader, watch)
    return Measured({**values, **report.values()}, report, loader.coverage, loader.num_samples)


def write_part(artifacts: Sequence[Artifact], facts: Mapping[str, Json], folder: Path) -> None:
    """Writes the results of a further analysis to a separate folder, which later evaluations without this analysis do
    not change. Its `metrics.json` names the step that the results belong to."""
    results = EvaluationFolder(folder)
    with results.new_results():
        results.write(artifacts)
        results.write_values(facts)


def measure_corruptions(
    clean: Measured,
    trained: Trained,
    corrupted: Mapping[Tuple[str, int], Samples],
    original: Samples,
    settings: EvalSettings,
    title: str,
    progress: WorkProgress,
) -> List[Artifact]:
    """Measures the metrics of corrupted samples.

    Args:
        clean: results without corruption.
        trained: trained network.
        corrupted: (corruption, severity) -> samples.
        original: samples without corruption.
        settings: settings of `eval`.
        title: title with split and step.
        progress: shows the passes.
    """
    from mxtrain.training.robustness import CLEAN, corruption_artifacts

    rows = [(CLEAN, 0, clean.values)]
    with progress:
        progress.begin("measuring corruptions:", len(corrupted))
        for (name, severity), source in corrupted.items():
            rows.append((name, severity, measure(trained, source, original, settings.limit_batches).values))
            progress.advance(1)
    return corruption_artifacts(rows, title)


def load_method(settings: EvalSettings, run: RestoredRun, exported: bool) -> Method:
    """Builds the attribution method, with a separate copy of the network, or of the part that `export` writes.

    Raises:
        ConfigError: the network has no suitable layer.
    """
    from mxtrain.training.attribution import build_method
    from mxtrain.training.trained import load_network

    network = load_network(run.checkpoint, run.description, run.signature, exported)
    assert settings.explain is not None
    return build_method(settings.explain, network, settings.explain_layer, run.signature.shape)


def explain_samples(
    trained: Trained, method: Method, source: Samples, indices: Sequence[int], title: str, progress: WorkProgress
) -> Tuple[List[Artifact], str]:
    """Computes attributions: which parts of the samples determine their predictions.

    Returns:
        The artifacts, and a warning if attributions are not complete; else "".
    """
    from mxtrain.task.heat_figure import show_explained
    from mxtrain.training.attribution import TOLERANCE, explain
    from mxtrain.training.loaders import build_loader, take

    task, signature = trained.description.task, trained.signature
    chosen = take(source, indices)
    loader = build_loader(
        trained.description,
        chosen,
        signature,
        trained.device,
        batch_size=EXPLAINED_AT_A_TIME,
        prefetch=0,
        in_order=True,
    )
    attributions: List[Attribution] = []
    with progress:
        progress.begin(f"{method.title}: samples", len(indices))
        for batch in loader.epoch(0):
            choose = partial(task.explained, trained.description, signature)
            attributions += explain(batch, indices[len(attributions) :], method, choose)
            progress.advance(batch.size)
    incomplete = [str(result.index) for result in attributions if result.facts.get("error", 0) > TOLERANCE]
    warning = ""
    if incomplete:
        warning = (
            f"of samples {', '.join(incomplete)} the attributions' sum misses the difference of the scores by more "
            f"than {TOLERANCE:.0%}: see `error` in explain.csv"
        )
    return show_explained(chosen, attributions, f"{method.title}, {title}; largest loss first"), warning
