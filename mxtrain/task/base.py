"""The protocol of a task, which is the only place that knows what a sample means.

Loaders, strategies, stores, step, runner, checkpoints and loggers know arrays, never classes, boxes or tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.task.fit import check_fit
from mxtrain.task.needs import CARRIED_ROWS
from mxtrain.task.report import Report as Report  # whoever writes a task finds both here
from mxtrain.types import Artifact, Figure, Spec, Stateful

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Array, Json, JsonObject, LossBlock, OperatorModule
    from mxtrain.data.base import BaseDataset, Samples
    from mxtrain.data.loading.loader import Collate
    from mxtrain.data.loading.samples import Encode
    from mxtrain.data.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.engine.predictions import Decode, Predictions
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.metric.metrics import Metric
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.explained import Attribution, Explained
    from mxtrain.task.exported_part import ExportedPart
    from mxtrain.types import Batch, Shapes


class Task(Spec):
    """Joins a dataset to a network. A new task is a subclass and one YAML in conf/task/.

    Names in `tasks` of datasets, models, losses and metrics are names of options in conf/task/.
    """

    name: ClassVar[str] = ""
    """The name, as in conf/task/, by which `tasks` of datasets, models, losses and metrics lists it. Empty for a
    task of a user's own, which any dataset and model may serve."""
    predicts: ClassVar[bool] = True
    """True if `predict` has something to say."""
    predict_inputs: ClassVar[str] = "FILE..."
    """Arguments after `predict RUN` in examples; empty: predictions are made for the dataset."""
    exports_any_size: ClassVar[bool] = True
    """True if an exported network may take samples of other sizes: false if predictions depend on the trained one."""
    writes: ClassVar[str] = ""
    """Content of the files that `predict` writes in addition to rows, one for each sample, such as "mask"; empty:
    none."""
    writes_ending: ClassVar[str] = ".png"
    """Extension of these files."""
    writes_by_default: ClassVar[bool] = True
    """True if `predict` writes these files also where no folder was named for them."""
    formats: ClassVar[Tuple[str, ...]] = ()
    """Forms of predictions besides JSONL and CSV, see `write_as`."""
    dataset_options: ClassVar[Tuple[str, ...]] = ()
    """Datasets that read a user's own files for this task."""
    num_measured: ClassVar[Optional[int]] = None
    """Number of first outputs of the network that metrics read; None = all."""
    model_option: ClassVar[str] = ""
    """A model that fits, for messages; "" if there is none."""
    loss_option: ClassVar[str] = ""
    """The option of conf/loss/ to suggest where another does not fit."""
    metric_option: ClassVar[str] = ""
    """The default options of conf/metric/."""
    list_field: ClassVar[Tuple[str, str]] = ("", "")
    """Name of the list in each row and its content; `predict` reports the total count."""
    distils: ClassVar[str] = ""
    """Kind of the first output, if a network can learn from another one's: "scores" of K choices, (B, K), or "values",
    (B, ...); empty: it cannot."""
    has_classes: ClassVar[bool] = False
    """True if each sample has one class, of those in `Splits.class_names`, by which `dataset.sampler` can choose it."""
    can_balance: ClassVar[bool] = True
    """True if a slower worker may get fewer samples (`cluster.balance=speed`)."""
    needs: ClassVar[Tuple[str, ...]] = ()
    """The requirements of `NEEDS` that it has; checked against strategy, store and precision before anything starts.
    Without requirements, as for most tasks, any part of a batch can be computed anywhere."""

    def needs_of(self, description: Description) -> Sequence[str]:
        """Returns the requirements of a run: of the task and of the chosen network."""
        carries = description.model.state_shapes and CARRIED_ROWS not in self.needs
        return [*self.needs, *([CARRIED_ROWS] if carries else [])]

    # Before anything starts.

    def check(self, description: Description) -> None:
        """Checks that dataset, model, loss and metrics fit each other and this task. Does not import MXNet.

        Raises:
            ConfigError: they do not; says what to type.
        """
        check_fit(self, description)

    def warnings(self, description: Description, signature: Signature) -> List[str]:
        """Warnings about settings that are allowed but say nothing with these data, a sentence each: by default about
        metrics that are 1 whatever is learned."""
        found = []
        for name, metric in description.metric.items():
            count = self.num_choices(metric, signature)
            setting = metric.constant_by(count)
            if setting:
                instead = "Type a smaller one, or leave the metric out"
                if description.trainer.monitor == f"val/{name}":
                    instead = "Nothing can get better by it: type a smaller one, or trainer.monitor=val/loss"
                found.append(f"metric.{name}.{setting}: of {count} choices, so it is always 1. {instead}.")
        return found

    def num_choices(self, metric: Metric, signature: Signature) -> int:
        """Counts the classes or items that a metric of the highest scores ranks."""
        return self.num_classes(signature)

    # Computation.

    def num_classes(self, signature: Signature) -> int:
        """The width of the network's first output."""
        return len(signature.class_names)

    def output_names(self, signature: Signature) -> Sequence[str]:
        """Returns the names of the `num_classes` scores; empty if they have none."""
        return list(signature.class_names)

    def output_shapes(self, description: Description, signature: Signature) -> List[Tuple[int, ...]]:
        """The shape of each of the network's outputs for one sample, without the batch; empty where only the network
        knows."""
        return [(self.num_classes(signature),)]

    def training_shapes(self, description: Description, signature: Signature) -> Shapes:
        """Shapes of the inputs of the network in training: those of `Signature.shape`, optionally followed by more,
        which `build_collate` adds to training batches. A network computes its training form if it gets them."""
        return signature.shape

    def build_network(self, description: Description, signature: Signature) -> gluon.Block:
        """The network, uninitialised; as the description's model builds it for what the samples are.

        Args:
            description: holds the model.
            signature: says what the samples are.
        """
        outputs = self.output_shapes(description, signature)
        return signature.build_network(description.model, self.num_classes(signature), outputs)

    def build_collate(self, description: Description, signature: Signature, training: bool) -> Optional[Collate]:
        """The last word on a batch: (batch, epoch) -> batch, or None if it stays what the dataset made of it.

        What it draws is a function of (`trainer.seed`, epoch, `Batch.index_B`), so that a batch is the same whoever
        computes which part of it; without training also of no epoch, so that validations compare.

        Args:
            description: of the run.
            signature: of the network.
            training: whether the batch is to be trained on.
        """
        return None

    def build_encode(self, description: Description, signature: Signature, training: bool) -> Optional[Encode]:
        """Returns the function from a source's labels (B, ...) to all targets, run on the host in the reading threads;
        None if labels are the only target.

        Args:
            description: of the run.
            signature: of the network.
            training: whether the batch is to be trained on.
        """
        return None

    def build_loss(self, description: Description, signature: Signature, training: bool) -> LossBlock:
        """A block of (*outputs, *targets) -> loss (B,), or with `weighted = True` -> loss (B,) and weight (B,).

        The loss of a batch is sum(loss) / sum(weight) over the global batch, whoever computes which part of it.

        Args:
            description: holds the loss.
            signature: of the network.
            training: targets may then be mixed or smoothed.

        Raises:
            ConfigError: a user's loss does not return one value for each sample.
        """
        loss = description.loss.build(self.num_classes(signature), training)
        return self.validate_loss_output(loss, description, self.output_shapes(description, signature))

    def validate_loss_output(
        self, loss: gluon.Block, description: Description, shapes: Sequence[Tuple[int, ...]],
        target_shape: Optional[Tuple[int, ...]] = None,
    ) -> LossBlock:  # fmt: skip
        """Returns the block, after a trial if it is a user's own loss; the trial shows whether it returns weights.

        Args:
            loss: made of `description.loss`.
            shapes: of the network's outputs for one sample.
            target_shape: of the target of one sample; by default that of the first output without its last axis.

        Raises:
            ConfigError: it does not return one value for each sample.
        """
        if isinstance(description.loss, CustomLoss):
            target = None if target_shape is None else (2, *target_shape)
            loss.weighted = description.loss.check(loss, (2, *shapes[0]), target, len(shapes))
        return loss

    def build_meter(
        self, description: Description, signature: Signature, weights: LossWeights, training: bool
    ) -> Meter:  # fmt: skip
        """Sums of loss and metrics on the device.

        Args:
            description: holds the metrics.
            signature: of the network.
            weights: that the loss gives.
            training: targets may then be mixed.
        """
        from mxtrain.metric.meter import Meter, MeterOutputs

        outputs = MeterOutputs(
            len(self.output_shapes(description, signature)), self.num_measured, self.output_scale(signature)
        )
        return Meter(description.metric, self.num_classes(signature), weights, outputs, training=training)

    def output_scale(self, signature: Signature) -> Tuple[float, float]:
        """Mean and deviation by which outputs become what targets are."""
        return 0.0, 1.0

    def metrics(self, description: Description, signature: Signature) -> Mapping[str, Metric]:
        """The metrics by name, with what the data decides of them.

        Args:
            description: holds the metrics.
            signature: of the network.
        """
        return description.metric

    def metric_signatures(self, description: Description, signature: Signature) -> Mapping[str, str]:
        """The variant of each metric, by name, where the field has several.

        Args:
            description: holds the metrics.
            signature: of the network.
        """
        return description.metric_signatures

    def build_states(self, loss: LossBlock) -> Mapping[str, Stateful]:
        """By name, what the task changes in training besides parameters; checkpoints hold it.

        Args:
            loss: what `build_loss` returned for training.
        """
        return {}

    # Reports and output files.

    def in_training(self) -> Task:
        """The task as validations of a run, and its test at the end, have it: for tasks whose predictions would take
        too long there. `eval` and `predict` have the task as it is."""
        return self

    def build_decode(self, description: Description, signature: Signature) -> Decode:
        """Makes predictions of (outputs, batch), see `decode`; for tasks whose networks say what their outputs mean.

        Args:
            description: of the run.
            signature: of the network.
        """
        return self.decode

    def build_decode_with(self, description: Description, signature: Signature, strategy: Strategy) -> Decode:
        """As `build_decode`, for tasks that ask the network again for each step of a prediction.

        Args:
            description: of the run.
            signature: of the network.
            strategy: has the weights, which training changes, in `values`.
        """
        return self.build_decode(description, signature)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> Predictions:
        """Predictions from what the network returns for a batch, still on the device, one for each sample: one array
        (B, ...), or several where their shapes differ."""
        raise NotImplementedError

    def export_outputs(
        self, F: OperatorModule, outputs: Sequence[Array], description: Description, signature: Signature
    ) -> Dict[str, Array]:  # fmt: skip
        """Returns predictions by name that an exported network makes beside its own outputs, see `decode`.

        Args:
            F: MXNet's operators of symbols.
            outputs: of the network.
            description: of the run.
            signature: of the network.
        """
        return {}

    def export_facts(self, description: Description, signature: Signature, strategy: Strategy) -> Dict[str, Json]:
        """Returns what an exported folder's reader needs to know of the task; by default its settings.

        Args:
            description: of the run.
            signature: of the network.
            strategy: has the weights.
        """
        return self.model_dump(mode="json")

    def export_parts(
        self, description: Description, signature: Signature, strategy: Strategy, inputs: Sequence[np.ndarray]
    ) -> Mapping[str, ExportedPart]:  # fmt: skip
        """Returns further graphs of an exported network by name, such as the step of a decoder.

        Args:
            description: of the run.
            signature: of the network.
            strategy: has the weights.
            inputs: of real samples, (B, ...) each.
        """
        return {}

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the row that `predict` writes for one prediction, as JSON.

        Args:
            signature: of the network.
            prediction: one sample's, of what `decode` returned.
            top_k: how many alternatives to name, where there are several.
        """
        raise NotImplementedError

    def rows(
        self, signature: Signature, source: Samples, found: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:  # fmt: skip
        """Yields the rows that `predict` writes as (index, row), with the index of the source location returned by
        `open_inputs`. Tasks override it if a row covers several samples, or contains data of the source.

        Args:
            signature: of the network.
            source: of the samples that are predicted for.
            found: the number of each sample and its prediction, in order.
            top_k: see `row`.
        """
        for number, prediction in found:
            yield number, self.row(signature, prediction, top_k)

    def encode_file(self, signature: Signature, prediction: np.ndarray, source: Samples, index: int) -> bytes:
        """The file that `predict` writes of one prediction, where `writes` says that it writes some: an image, or what
        `writes_ending` says.

        Args:
            signature: of the network.
            prediction: one sample's, of what `decode` returned.
            source: of the samples that are predicted for.
            index: of the sample in it.
        """
        raise NotImplementedError

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """The rows of `rows` as columns of a CSV file."""
        return dict(row)

    def format_count(self, count: int) -> str:
        """Describes the total length of the lists of all rows; see `lists`."""
        return f"{count:,} {self.list_field[1]}"

    def sample_ids(self, form: str, places: Sequence[str], dataset: BaseDataset) -> Mapping[str, Json]:
        """Returns the ids of samples in a prediction format, by place; empty if formats do not need ids.

        Args:
            form: "jsonl", "csv" or one of `formats`.
            places: of the samples, e.g. their files.
            dataset: of the run.

        Raises:
            ConfigError: predictions for these files cannot be written so; says why.
        """
        return {}

    def write_as(self, form: str, signature: Signature, rows: Iterable[JsonObject]) -> Iterator[str]:
        """Predictions in one of `formats`, as pieces of text.

        Args:
            form: one of `formats`.
            signature: of the network.
            rows: as `predict` writes them as JSONL: "file" and what `row` gives; and "sample_id", where `sample_ids`
                says one.
        """
        raise NotImplementedError

    def can_show(self, description: Description) -> bool:
        """Returns True if a few validation samples are shown with their predictions."""
        return False

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:  # fmt: skip
        """A few samples as a person sees them, with what the network says of them.

        Args:
            signature: of the network.
            source: of these samples, in order.
            predictions: what `decode` returned, one for each sample.
            targets: (B, ...) each; shorter samples are padded with -1.
        """
        return []

    def build_report(self, description: Description, signature: Signature, source: Samples) -> Report:
        """Builds the report that `eval` shows and writes in addition to loss and metrics.

        Args:
            description: of the run.
            signature: of the network.
            source: of the samples that are measured.
        """
        return Report()

    def check_explained(self, description: Description) -> None:
        """Checks that `explained` can be drawn for this description. Does not import MXNet.

        Raises:
            ConfigError: it has not; says why.
        """
        gives = description.dataset.sample_type or "something else"
        if gives != "images":
            what = "it draws which pixels of an image decided"
            raise ConfigError(f"explain: {what}, and the dataset gives {gives}. Leave explain out.")
        if type(self).explained is Task.explained:
            own = f"task={self.name}" if self.name else f"the task {type(self).__name__}"
            raise ConfigError(f"explain: {own} does not say which of its numbers to explain. Leave explain out.")

    def explained(
        self, description: Description, signature: Signature, outputs: Tuple[NDArray, ...], batch: Batch
    ) -> Explained:
        """The number of each sample that `eval` explains: the score of what was predicted. May wait for the device.

        Args:
            description: of the run.
            signature: of the network.
            outputs: what the network returns for the batch.
            batch: of a few samples.
        """
        raise NotImplementedError

    def show_explained(self, source: Samples, found: Sequence[Attribution], title: str) -> List[Artifact]:
        """Returns figures of the parts of each sample that its explained score comes from.

        Args:
            source: of these samples, in order.
            found: of each sample.
            title: names method, split and step.
        """
        from mxtrain.task.heat_figure import draw_heat, heat_table
        from mxtrain.task.sample_figure import images_of

        images = images_of(source)  # type: ignore[arg-type]  # of images, as `check_explained` says
        return [heat_table(found), Figure("explain", lambda most: draw_heat(images, found, title))]
