"""Base class of tasks. Only tasks interpret samples, e.g. as classes, boxes or tokens.

Loaders, strategies, stores, the training step, the runner, checkpoints and loggers only handle arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, List, Mapping, Optional, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.task.fit import check_fit, title_of
from mxtrain.task.own_loss import validate_loss_output
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.report import Report as Report  # imported so that authors of tasks find both here
from mxtrain.task.task_export import TaskExport
from mxtrain.types import Artifact, Spec, Stateful
from mxtrain.types.kinds import Images, Number, Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.loading.loader import Collate
    from mxtrain.data.loading.samples import Encode
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode, Predictions
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.metric.spec import Metric
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.explained import Explained
    from mxtrain.types import Batch, Shapes
    from mxtrain.types.annotations import Json, LossBlock


class Task(Spec):
    """Connects a dataset to a network. A new task is a subclass and one YAML file in conf/task/."""

    name: ClassVar[str] = ""
    """Name of its YAML file in conf/task/, for messages."""
    takes: ClassVar[Takes] = Takes()
    """Kinds of samples and targets that the task accepts; by default any. Datasets must give these kinds, and models,
    losses and metrics must accept these targets."""
    predicts: ClassVar[bool] = True
    """True if `predict` can write predictions."""
    distils: ClassVar[str] = ""
    """Kind of the first output for distillation: "scores" of K classes, (B, K), or "values", (B, ...); empty if
    distillation is not supported."""
    decodes_slowly: ClassVar[bool] = False
    """True if a prediction takes many steps. Then `eval` predicts only if a metric needs it."""
    needs: ClassVar[Tuple[str, ...]] = ()
    """Requirements of `mxtrain.task.needs` on strategy, store and precision, which are checked before the run. Most
    tasks have none: any part of a batch can be computed on any device."""

    # Checks before the run.

    def check(self, description: RunParts) -> None:
        """Checks that dataset, model, loss and metrics fit each other and this task. Does not import MXNet.

        Raises:
            ConfigError: they do not fit; the message names the setting to change.
        """
        check_fit(self, description)

    def num_choices(self, metric: Metric, signature: Signature) -> int:
        """Returns the number of classes or items that a top-k metric ranks."""
        return self.num_classes(signature)

    # Computation.

    def num_classes(self, signature: Signature) -> int:
        """Returns the width of the network's first output."""
        return len(signature.class_names)

    def output_names(self, signature: Signature) -> Sequence[str]:
        """Returns the names of the `num_classes` scores; empty if they have none."""
        return list(signature.class_names)

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Tuple[int, ...]]:
        """Returns the shape of each network output for one sample, without the batch axis; empty if unknown."""
        return [(self.num_classes(signature),)]

    def training_shapes(self, description: RunParts, signature: Signature) -> Shapes:
        """Returns the shapes of the network inputs in training.

        These are `Signature.shape`, optionally followed by inputs that `build_collate` adds to training batches. A
        network that gets these computes its training outputs.
        """
        return signature.shape

    def build_network(self, description: RunParts, signature: Signature) -> gluon.Block:
        """Builds the uninitialized network from the description's model.

        Args:
            description: description with the model.
            signature: shapes and classes of the samples.
        """
        outputs = self.output_shapes(description, signature)
        return signature.build_network(description.model, self.num_classes(signature), outputs)

    def build_collate(self, description: RunParts, signature: Signature, training: bool) -> Optional[Collate]:
        """Returns the function (batch, epoch) -> batch that processes each batch last; None if there is none.

        Its random numbers must be a function of (`trainer.seed`, epoch, `Batch.index_B` or `Batch.number`), so that a
        batch does not depend on its division over workers. Without `training` they must not depend on the epoch either,
        so that validations are comparable.

        Args:
            description: description of the run.
            signature: signature of the network.
            training: True for training batches.
        """
        return None

    def build_encode(self, description: RunParts, signature: Signature, training: bool) -> Optional[Encode]:
        """Returns the function that maps the labels (B, ...) of a source to all targets; None if labels are the only
        target. It runs on the host, in the loading threads.

        Args:
            description: description of the run.
            signature: signature of the network.
            training: True for training batches.
        """
        return None

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        """Builds the block (*outputs, *targets) -> loss (B,), or with `weighted = True` -> loss (B,), weight (B,).

        The loss of a batch is sum(loss) / sum(weight) over the global batch, so it does not depend on its division
        over devices and workers.

        Args:
            description: description with the loss.
            signature: signature of the network.
            training: True for training, where targets may be mixed or smoothed.

        Raises:
            ConfigError: a user's loss does not return one value for each sample.
        """
        if self.takes.makes is not None and issubclass(self.takes.makes, Number):
            from mxtrain.loss.blocks import RegressionLoss

            return validate_loss_output(RegressionLoss(description.loss.block()), description, [(1,)])
        loss = description.loss.build(self.num_classes(signature), training)
        return validate_loss_output(loss, description, self.output_shapes(description, signature))

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        """Builds the block that sums loss and metrics on the device.

        Args:
            description: description with the metrics.
            signature: signature of the network.
            weights: sample weights of the loss.
            training: True for training, where targets may be mixed.
        """
        from mxtrain.metric.meter import Meter, MeterOutputs

        outputs = MeterOutputs(len(self.output_shapes(description, signature)), scale=self.output_scale(signature))
        metrics = self.metrics(description, signature)
        return Meter(metrics, self.num_classes(signature), weights, outputs, training=training)

    def output_scale(self, signature: Signature) -> Tuple[float, float]:
        """Returns mean and standard deviation that convert outputs to the unit of the targets."""
        return 0.0, 1.0

    def metrics(self, description: RunParts, signature: Signature) -> Mapping[str, Metric]:
        """Returns the metrics by name, with settings that depend on the data filled in.

        Args:
            description: description with the metrics.
            signature: signature of the network.
        """
        return description.metric

    def metric_signatures(self, description: RunParts, signature: Signature) -> Mapping[str, str]:
        """Returns the variant of each metric by name, for metrics of which the literature has several variants.

        Args:
            description: description with the metrics.
            signature: signature of the network.
        """
        return description.metric_signatures

    def build_states(self, loss: LossBlock) -> Mapping[str, Stateful]:
        """Returns the state besides parameters that training changes, by name; checkpoints store it.

        Args:
            loss: result of `build_loss` for training.
        """
        return {}

    # Results of single samples.

    def result_predictions(self, decode: Decode, outputs: Tuple[NDArray, ...], batch: Batch) -> Predictions:
        """Returns the predictions that `result` reads, still on the device; by default those of `decode`.

        Args:
            decode: result of `build_decode`; decodes each batch once for all callers.
            outputs: outputs of the network.
            batch: the batch.
        """
        return decode(outputs, batch)

    def record_of(self, index: int, meta: Any) -> Optional[int]:
        """Returns the index in its split of the record that a sample was made from; None for windows of running text.

        Args:
            index: index of the sample in the loader.
            meta: row of `Batch.meta` of the sample; None if there is none.
        """
        return index

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the columns of a sample in `predictions.csv` of `eval`, besides its location, loss and metrics.

        Every sample must have the same columns. Tasks with classes return "true" and "predicted".

        Args:
            signature: signature of the network.
            source: evaluated split.
            sample: prediction and targets of the sample.
        """
        return {}

    # Reports and output files.

    def in_training(self) -> Task:
        """Returns the task for the validations and the final test of a training run.

        Tasks with slow predictions return a faster variant. `eval` and `predict` use the task itself.
        """
        return self

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        """Returns the function (outputs, batch) -> predictions, by default `decode`.

        Override it if decoding depends on the description or the signature, or calls the network again in each step of
        a prediction.

        Args:
            description: description of the run.
            signature: signature of the network.
            strategy: strategy whose `values` are the current weights; None in reports, which get predictions.
        """
        return self.decode

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> Predictions:
        """Converts network outputs to predictions, still on the device.

        Returns:
            One array (B, ...), or one array per sample if their shapes differ.
        """
        raise NotImplementedError

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the row that `predict` writes for one prediction, as JSON; see `prediction_format` for other rows.

        Args:
            signature: signature of the network.
            prediction: prediction of one sample, as `decode` returned it.
            top_k: number of alternatives in the row, if there are several.
        """
        raise NotImplementedError

    def prediction_format(self) -> PredictionFormat:
        """Returns the rows and files in which `predict` writes predictions."""
        return PredictionFormat(self)

    def export_form(self) -> TaskExport:
        """Returns the further outputs and facts of exported networks."""
        return TaskExport(self)

    def can_show(self, description: RunParts) -> bool:
        """Returns True if a few validation samples are shown with their predictions."""
        return False

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        """Returns figures or tables of a few samples and their predictions.

        Args:
            signature: signature of the network.
            source: the samples, in order.
            predictions: prediction of each sample, as `decode` returned it.
            targets: targets, (B, ...) each; shorter samples are padded with -1.
        """
        return []

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        """Builds the report that `eval` shows and writes in addition to loss and metrics.

        Args:
            description: description of the run.
            signature: signature of the network.
            source: samples that are measured.
        """
        return Report()

    def check_explained(self, description: RunParts) -> None:
        """Checks that `explained` can be drawn for this description. Does not import MXNet.

        Raises:
            ConfigError: it cannot be drawn.
        """
        sample = description.dataset.gives.sample
        if not issubclass(sample, Images):
            purpose = "it draws which pixels of an image decided"
            given = sample.name or "something else"
            raise ConfigError(f"explain: {purpose}, and the dataset gives {given}. Leave explain out.")
        if type(self).explained is Task.explained:
            raise ConfigError(
                f"explain: {title_of(self)} does not say which of its numbers to explain. Leave explain out."
            )

    def explained(
        self, description: RunParts, signature: Signature, outputs: Tuple[NDArray, ...], batch: Batch
    ) -> Explained:
        """Selects the number of each sample that `eval` explains: the score of its prediction. May wait for the device.

        Args:
            description: description of the run.
            signature: signature of the network.
            outputs: outputs of the network for the batch.
            batch: a few samples.
        """
        raise NotImplementedError
