"""The protocol of callbacks: the events of a run, and the values that come with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.types.artifacts import Artifact
from mxtrain.types.batch import Shapes

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon
    from rich.console import RenderableType

    from mxtrain.types.annotations import Best, Config, GraphRow, Json, JsonObject, MetricRow, UsageReport


class GpuMemory(NamedTuple):
    """Memory use of a GPU, in megabytes.

    Attributes:
        device: name of the device, e.g. "gpu:0".
        used_mb: current use.
        peak_mb: largest use since the start of the run, sampled whenever rows are written.
        is_own: True if the values are those of this process, False if they cover all processes.
    """

    device: str
    used_mb: float
    peak_mb: float
    is_own: bool

    def scalars(self) -> Dict[str, float]:
        """Returns the values by TensorBoard tag."""
        name = self.device.replace(":", "")
        return {f"perf/{name}_memory_mb": self.used_mb, f"perf/{name}_memory_peak_mb": self.peak_mb}


@dataclass(frozen=True)
class Progress:
    """The progress of a run; all counts are of finished work."""

    step: int
    epoch: int
    total_steps: Optional[int]
    """Steps of the whole run; None if only a time limit ends it."""
    gpu_memory: Sequence[GpuMemory] = ()
    """Memory of each GPU at the time of the call; empty on CPUs."""


@dataclass(frozen=True)
class CommandLine:
    """Command that started a run, for display and to build follow-up commands. Only `program` and `tensorboard` are
    quoted for a shell."""

    program: str = "python -m mxtrain"
    """Command that starts mxtrain here, as typed in a shell."""
    tensorboard: str = "tensorboard"
    """Command that starts TensorBoard, as typed in a shell."""
    flags: Sequence[str] = ()
    """Flags that every command on this run needs, such as `--config-dir FOLDER`."""
    overrides: Sequence[str] = ()
    """The overrides of this run (of this job in a sweep), as Hydra was given them."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """The chosen option of each group, as typed, e.g. {"amp": "off"}; empty if unknown."""
    job: Optional[int] = None
    """In a sweep: the number of the job."""
    swept: Sequence[str] = ()
    """In a sweep: the settings in which its jobs differ, e.g. ["optimizer.lr"]."""

    @property
    def arguments(self) -> Sequence[str]:
        """Returns the arguments that follow `program` to make the same run again."""
        return [*self.flags, *self.overrides]


BY_HAND = CommandLine()
"""Command line of a run that was started from Python, e.g. in a notebook: there is none."""


@dataclass(frozen=True)
class RunInfo:
    """The description of a run that callbacks and loggers get when it begins."""

    run_dir: Path
    config: Config
    """The resolved configuration as plain nested dicts."""
    resumed_step: int
    """Step of the checkpoint that the run continues from; 0 for a new run."""
    total_steps: Optional[int]
    steps_per_epoch: int
    """Steps of an epoch with the current batch size, see `epoch_origin`."""
    input_shape: Shapes
    """The shape of one sample as it enters the network, or the shape of each of several inputs."""
    network: gluon.Block
    """The gluon.HybridBlock, initialised, with known shapes."""
    metric_names: Sequence[str]
    metric_signatures: Mapping[str, str] = field(default_factory=dict)
    """Name of a metric -> its variant, for metrics that publications compute in several variants."""
    lr_scaling: Mapping[str, Json] = field(default_factory=dict)
    """Scaling of the learning rate for the global batch, if any."""
    monitor: str = "val/accuracy"
    direction: str = "max"
    """"max" if larger values of `monitor` are better, otherwise "min"."""
    graph_nodes: Callable[[], Sequence[GraphRow]] = tuple
    """Traces the network when called: (name, op, inputs, attrs, output shape) of each node; empty if unknown."""
    model_table: Optional[RenderableType] = None
    """Summary of the model, as text or an object that `rich` can print."""
    placement_table: Optional[RenderableType] = None
    """Placement of the network over devices; None if it is on one."""
    command: CommandLine = BY_HAND
    """Command that started the run."""
    epoch_origin: int = 0
    """Step at which epoch 0 would have begun if all epochs had `steps_per_epoch` steps; not 0 after a change of the
    batch size. The epoch of a step is (step - epoch_origin) // steps_per_epoch."""
    predicts: bool = True
    """True if `predict` supports the trained network."""
    predict_inputs: str = "FILE..."
    """Arguments after `predict RUN` in an example: files, or nothing."""


@dataclass(frozen=True)
class Validation:
    """The result of one pass over the validation data."""

    row: MetricRow
    """The row of metrics.jsonl: step, epoch, split, loss, metrics, samples_per_s."""
    best: Optional[Best]
    """{"metric", "value", "step"} of the best validation so far, this one included."""
    read_samples: Callable[[], Sequence[Artifact]]
    """A few samples with the predictions of the network; none if the task has nothing to show."""
    read_parameters: Callable[[], Mapping[str, np.ndarray]]
    """The parameters by structural name, copied to the host. Waits for the device, so call it only if needed."""


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    state: str
    """finished, stopped_early, interrupted or failed."""
    exit_code: int
    cause: str
    step: int
    epoch: int
    best: Optional[Best] = None
    """{"metric", "value", "step"} or None."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last or best values by tag, e.g. {"val/accuracy": 0.99, "test/accuracy": 0.98}."""
    checkpoint: Optional[str] = None
    best_checkpoint: Optional[str] = None
    """The checkpoint of the best step; None if its weights were not kept."""
    measured: Mapping[str, JsonObject] = field(default_factory=dict)
    """Split -> origin of its `metrics`: {"step": step of the weights, "part": evaluated part of the split, e.g.
    "2 of 6 batches"; empty for the whole split}."""
    weights_sha256: str = ""
    samples_per_s: float = 0.0
    wall_s: float = 0.0


OF_EPOCH = "_epoch"
"""Suffix of the tags of means over a whole epoch: train/loss_epoch is the mean of all points of train/loss."""


class Callback:
    """Observes a run. All methods do nothing by default; override the ones you need.

    Rows passed to `on_steps` are final: each row is passed exactly once, in order, even across resumes.
    """

    def on_start(self, run: RunInfo) -> None:
        """Called before the first step, and before anything is logged."""

    def on_steps(self, rows: Sequence[MetricRow], progress: Progress) -> None:
        """Called at each logging interval, with one row per step since the last call, as in metrics.jsonl."""

    def on_glance(self, row: MetricRow, progress: Progress) -> None:
        """Called about every two seconds between two `on_steps` if steps are slow, to show progress.

        The row is that of the newest finished step. `on_steps` passes it again, in order.
        """

    def on_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Called with further values by TensorBoard tag, e.g. {"perf/samples_per_s": 5e3}.

        At each multiple of `trainer.log_interval` (or of the steps of an epoch, if these are fewer) and at the end of
        the run, values include train/loss, train/lr and train/<metric> of the steps since the last such values. At the
        end of an epoch they include train/loss_epoch and train/<metric>_epoch of all its steps. Interruptions do not
        change these values.
        """

    def on_usage(self, usage: UsageReport) -> None:
        """Called occasionally with the use of devices in a few steps, on several devices or with trainer.profile.

        A report has a `table()` for display and `scalars()` for TensorBoard; see `mxtrain.parallel.usage.Usage` and
        `operator_times.OperatorTimes`.
        """

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        """Called after a pass over the validation data."""

    def on_checkpoint(self, step: int) -> None:
        """Called before a checkpoint of `step` is saved. All rows up to `step` must be on disk when this returns."""

    def on_message(self, text: str) -> None:
        """Called with a sentence for the user, e.g. that a save failed and training continues."""

    def on_end(self, result: Result) -> None:
        """Called at the end of the run, also after a failure or an interrupt."""


def require_known_events(kind: type, path: str) -> None:
    """Rejects a callback's class with a misspelled event, which would never be called.

    Args:
        kind: subclass of `Callback`.
        path: setting or argument that named it, for messages.

    Raises:
        ConfigError: a method has the prefix of an event, but is none.
    """
    events = [name for name in dir(Callback) if name.startswith("on_")]
    for name in dir(kind):
        if name.startswith("on_") and name not in events:
            raise ConfigError(
                f"{path}: nothing calls {kind.__name__}.{name}.{did_you_mean(name, events)} A callback may have "
                f"{', '.join(events)}; begin the names of other methods with something else."
            )
