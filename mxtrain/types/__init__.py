"""Types that the packages share: descriptions (`Spec`), and the values that are passed between packages.

This module does not import MXNet. A description is a frozen, validated object built from YAML. Its `build...` methods
import MXNet only when they are called, so that a wrong description is rejected without MXNet.

Legend: B batch.
"""

from __future__ import annotations

import datetime
import enum
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ClassVar,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

import pydantic
from typing_extensions import Annotated, Literal

from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon
    from mxnet.ndarray import NDArray
    from PIL import Image
    from rich.console import RenderableType

    from mxtrain.types.annotations import Best, Config, GraphRow, Json, JsonObject, MetricRow, UsageReport

LARGEST_COUNT = 2**31 - 1
"""MXNet 1.9.1 counts in 32 bits: elements of an array, seeds, steps of a schedule."""
Positive = Annotated[int, pydantic.Field(gt=0, le=LARGEST_COUNT)]
NonNegative = Annotated[int, pydantic.Field(ge=0, le=LARGEST_COUNT)]
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]
PositiveFloat = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
BatchSize = Union[Literal["auto"], Positive]
Fraction = Annotated[float, pydantic.Field(ge=0, le=1)]
ProperFraction = Annotated[float, pydantic.Field(gt=0, lt=1)]
OpenFraction = Annotated[float, pydantic.Field(ge=0, lt=1)]

Number = TypeVar("Number", int, float)


def _ordered(values: List[Number]) -> List[Number]:
    smallest, largest = values
    if smallest > largest:
        raise ValueError(f"must be [smallest, largest], got {values}")
    return values


Range = Annotated[List[Number], pydantic.Field(min_length=2, max_length=2), pydantic.AfterValidator(_ordered)]
"""Smallest and largest."""


class NamedInt(enum.IntEnum):
    """Base class of named integers, such as columns of an array.

    `str` of a member is its number. Before Python 3.11, `str` of an `enum.IntEnum` is its name, which MXNet's operators
    reject, because MXNet passes their parameters as strings.
    """

    __str__ = int.__repr__


class NamedFlags(enum.IntFlag):
    """Base class of flags that can be combined; see `NamedInt`."""

    __str__ = int.__repr__


def expand_path(text: str) -> str:
    """Expands `~` and `$NAME` in a path like a shell, also in quoted overrides and in YAML files."""
    return os.path.expanduser(os.path.expandvars(text))


def require_quoted(names: object) -> object:
    """Checks that all names in a list are strings. YAML parses unquoted names such as 1E5, no, 0x1F, 10:30 as others.

    Raises:
        ValueError: a name is no string. The message does not repeat it, because its original spelling is lost.
    """
    other = next((name for name in names if not isinstance(name, str)), None) if isinstance(names, list) else None
    if other is not None:
        kind = (
            "true or false"
            if isinstance(other, bool)
            else "a number"
            if isinstance(other, (int, float))
            else "a date"
            if isinstance(other, datetime.date)
            else "no text"
        )
        raise ValueError(
            f"these are names, and one without quotes was read as {kind}. Put quotes around the names as they are "
            'written in the data, e.g. \'["1E5","no"]\''
        )
    return names


Names = Annotated[List[str], pydantic.BeforeValidator(require_quoted)]
"""Names as descriptions hold them: strings, each as it is written in the data."""
PathText = Annotated[str, pydantic.AfterValidator(expand_path)]
"""A path that a user gives, of a file or a folder."""
Shape = Tuple[int, ...]
Shapes = Union[Shape, Tuple[Shape, ...]]
"""Shapes of one sample, without the batch: of the only input, or of each of several in the network's order."""


def shapes_of(shapes: Shapes) -> Tuple[Shape, ...]:
    """Returns one shape for each input of a network, also if `shapes` is the shape of a single input."""
    sizes = tuple(size for size in shapes if isinstance(size, int))
    if len(sizes) == len(shapes):
        return (sizes,)
    return tuple(tuple(shape) for shape in shapes if not isinstance(shape, int))


class Spec(pydantic.BaseModel):
    """Base class of descriptions: frozen and validated. Unknown keys and wrong types are errors.

    `build...` methods construct the described object.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        arbitrary_types_allowed=True,
        defer_build=True,  # saves start-up time: a command imports 140 classes, but validates only 25
    )

    filled: ClassVar[Optional[Tuple[str, ...]]] = ()
    """Arguments that the group itself gives to a user's own class or function; None: which, another part says."""

    @classmethod
    def with_target(cls) -> Type[Spec]:
        """Returns the class of the fields that are allowed besides a `_target_` that is no `Spec`.

        All other fields are arguments of the target.
        """
        return cls

    @classmethod
    def of_target(cls, target: Any, arguments: Mapping[str, Any], common: Spec, path: str) -> Spec:
        """Wraps a user's own class or function that is no `Spec`. Groups that support this override it.

        Args:
            target: class or function at `_target_`.
            arguments: its arguments.
            common: fields of the group, of the class that `with_target` returns.
            path: path in the configuration, for messages.

        Raises:
            ConfigError: this group accepts only subclasses of its base class.
        """
        raise ConfigError(f"{path}._target_={target!r:.100}: must be a subclass of {cls.__module__}.{cls.__name__}.")


DistinctIds = Tuple["np.ndarray", "np.ndarray"]
"""Ids of an input on the host: its K distinct ids (K,), ascending, and the position of each id among them."""


@dataclass(frozen=True)
class Batch:
    """A batch on a device.

    Attributes:
        inputs: inputs of the network in order, (B, ...) each; empty if B is 0.
        targets: targets of loss and metrics, (B, ...) each; empty for predictions.
        size: B, known on the host without waiting for the device.
        global_size: number of samples of the global batch, of which this may be one worker's share; by default B.
    """

    inputs: Tuple[NDArray, ...]
    targets: Tuple[NDArray, ...]
    size: int
    global_size: int = 0
    index_B: Optional[np.ndarray] = None
    """The indices of the samples in their split, on the host; None if unknown."""
    meta: Optional[np.ndarray] = None
    """(B, ...): facts about each sample that stay on the host, such as the size of an image before it was fitted into
    what enters the network; None where a dataset keeps none. Only its task reads them."""
    continues_previous: bool = False
    """True if each row goes on where the same row of the batch before ended, so that a network that carries state gets
    the state of that row. It has all rows of the batch before."""
    ids: Optional[Mapping[int, DistinctIds]] = None
    """By the number of an input: its distinct ids, where they were looked for ahead of time. A part of the batch has
    none."""
    rows: Optional[Mapping[int, Any]] = None
    """By the number of an input: the rows of tables for these ids, where they were asked for ahead of time."""

    def __post_init__(self) -> None:
        if not self.global_size:
            object.__setattr__(self, "global_size", self.size)

    def slice(self, begin: int, end: int, global_size: int = 0) -> Batch:
        """Returns the samples from `begin` up to `end`, as views."""
        inputs, targets = (tuple(array[begin:end] for array in arrays) for arrays in (self.inputs, self.targets))
        index_B, meta = (None if array is None else array[begin:end] for array in (self.index_B, self.meta))
        return Batch(inputs, targets, end - begin, global_size, index_B, meta, self.continues_previous)

    def cast(self, dtype: str) -> Batch:
        """Returns the batch with floating-point arrays in another dtype; integer arrays are unchanged."""

        def cast(array: NDArray) -> NDArray:
            return array if array.dtype.__name__.startswith("int") else array.astype(dtype)

        arrays = (tuple(map(cast, self.inputs)), tuple(map(cast, self.targets)))
        return Batch(*arrays, self.size, self.global_size, self.index_B, self.meta, self.continues_previous)


class Stateful(Protocol):
    """State besides parameters that training changes.

    Checkpoints save and restore it without knowing its content. `TrainingStep.states` has all states of a run by name;
    tasks add theirs with `Task.build_states`.
    """

    def save_state(self) -> Tuple[Mapping[str, Union[NDArray, np.ndarray]], Mapping[str, Json]]:
        """Returns arrays by name (NDArray or NumPy, with at least one dimension and one element), and JSON values."""

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """Restores the state that `save_state` returned.

        Args:
            arrays: arrays on the host.
            values: JSON values.
            source: path of the checkpoint, for messages.

        Raises:
            CheckpointError: the state belongs to another network or setting.
        """


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
    """Steps that the limits allow in all; None where only a time limit ends the run."""
    gpu_memory: Sequence[GpuMemory] = ()
    """Of each GPU, as it was just now; empty on CPUs."""


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
    def words(self) -> Sequence[str]:
        """Returns the arguments that follow `program` to make the same run again."""
        return [*self.flags, *self.overrides]


BY_HAND = CommandLine()
"""Replaces the command line of a run that was started from Python, e.g. in a notebook."""


@dataclass(frozen=True)
class RunInfo:
    """The description of a run that callbacks and loggers get when it begins."""

    run_dir: Path
    config: Config
    """The resolved configuration as plain nested dicts."""
    resumed_step: int
    """0 for a new run; else the step of the checkpoint that the run continues from."""
    total_steps: Optional[int]
    steps_per_epoch: int
    """Of the present batch size, see `epoch_origin`."""
    input_shape: Shapes
    """The shape of one sample as it enters the network, or the shape of each of several inputs."""
    network: gluon.Block
    """The gluon.HybridBlock, initialised, with known shapes."""
    metric_names: Sequence[str]
    metric_signatures: Mapping[str, str] = field(default_factory=dict)
    """The variant of each metric, where the field has several."""
    lr_scaling: Mapping[str, Json] = field(default_factory=dict)
    """Scaling of the learning rate for the global batch, if any."""
    monitor: str = "val/accuracy"
    direction: str = "max"
    """"max" if larger values of `monitor` are better, otherwise "min"."""
    graph_nodes: Callable[[], Sequence[GraphRow]] = tuple
    """Traces the network when called: (name, op, inputs, attrs, output shape) of each node; empty if unknown."""
    model_table: Optional[RenderableType] = None
    """The model summary as text or as something that `rich` can print."""
    placement_table: Optional[RenderableType] = None
    """Placement of the network over devices; None if it is on one."""
    command: CommandLine = BY_HAND
    """Command that started the run."""
    epoch_origin: int = 0
    """Step at which epoch 0 would have begun with `steps_per_epoch`; not 0 after a change of the batch size."""
    predicts: bool = True
    """True if `predict` supports the trained network."""
    predict_inputs: str = "FILE..."
    """Arguments after `predict RUN` in an example: files, or nothing."""


@dataclass(frozen=True)
class Figure:
    """A figure that a task draws, e.g. of a few samples and their predictions."""

    name: str
    """The name of its file, without an ending, and of its tag in TensorBoard."""
    draw: Callable[[int], Image.Image]
    """Makes the PIL.Image of at most so many samples, where it shows samples."""


@dataclass(frozen=True)
class Table:
    """A table that a task shows or writes."""

    name: str
    """The name of its file, without an ending, and of its tag in TensorBoard."""
    header: Sequence[str]
    rows: Sequence[Sequence[Union[str, int, float]]]
    is_shown: bool = True
    """True if it is printed for a person, or only written."""


@dataclass(frozen=True)
class TextLines:
    """Lines of text that a task shows or writes."""

    name: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Audio:
    """A sound that a task provides for listening."""

    name: str
    """The name of its file, without an ending, and of its tag in TensorBoard."""
    sample_rate: int
    """Samples a second."""
    encode: Callable[[], bytes]
    """Makes the WAV file."""


Artifact = Union[Figure, Table, TextLines, Audio]
"""Output of a task for loggers, `eval` and `predict`, which know no task."""


@dataclass(frozen=True)
class Validation:
    """The result of one pass over the validation data."""

    row: MetricRow
    """The row of metrics.jsonl: step, epoch, split, loss, metrics, samples_per_s."""
    best: Optional[Best]
    """{"metric", "value", "step"} of the best validation so far, this one included."""
    read_samples: Callable[[], Sequence[Artifact]]
    """A few samples and what the network says of them; none where there is nothing that could be shown."""
    read_parameters: Callable[[], Mapping[str, np.ndarray]]
    """The parameters by structural name, copied to the host: forces a synchronisation, so ask only when needed."""


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
    """The checkpoint of the best step; None where its weights were not kept."""
    measured: Mapping[str, JsonObject] = field(default_factory=dict)
    """Origin of the `metrics` of a split: "val" -> {"step": of the weights, "part": e.g. "2 of 6 batches", or ""}."""
    weights_sha256: str = ""
    samples_per_s: float = 0.0
    wall_s: float = 0.0


OF_EPOCH = "_epoch"
"""Ends the tags of values of a whole epoch, e.g. train/loss_epoch, which has more than one point of train/loss."""


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
