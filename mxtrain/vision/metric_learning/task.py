"""Metric learning: embeds images so that those of one identity are close, as in face recognition.

Legend: B batch, D embedding size, K identities, N samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import pydantic

from mxtrain.errors import ConfigError
from mxtrain.task.prediction_format import PredictionFormat, class_name
from mxtrain.task.spec import Report, Task
from mxtrain.task.task_export import TaskExport
from mxtrain.types import Artifact, NonNegative, Positive, shapes_of
from mxtrain.types.kinds import ClassIndex, Images, Takes
from mxtrain.vision.images.variants import FLIP, require_variants
from mxtrain.vision.kinds import Identity
from mxtrain.vision.metric_learning.losses import EmbeddingLoss
from mxtrain.vision.metric_learning.metrics import EmbeddingMetric
from mxtrain.vision.metric_learning.sampled_classes import centre_ids, draw_classes
from mxtrain.vision.metric_learning.verification import FIRST_PAIR

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.loading.loader import Collate
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.metric.spec import Metric
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.explained import Explained
    from mxtrain.training.trained import Trained
    from mxtrain.types import Batch, Shape, Shapes
    from mxtrain.types.annotations import Json, JsonObject, LossBlock
    from mxtrain.vision.images.variants import ImageVariant

CENTRES = ("centres", "centres.weight")
"""Structural names of the class centres in `EmbeddingNetwork` and `SampledEmbeddingNetwork`, whose module imports
MXNet."""


class MetricLearning(Task):
    """Embeddings of images, (B, D), of length 1.

    With a loss that compares embeddings with class centres, the second output is their cosines, (B, K). The centres are
    parameters of the network; export and evaluation on other identities leave them out. Predictions are embeddings.
    """

    name: ClassVar[str] = "metric_learning"
    takes: ClassVar[Takes] = Takes(Images, Identity, ClassIndex, makes=Identity)

    embedding_size: Positive = 128
    """Length of embeddings; 512 in insightface's networks."""
    sampled_classes: Optional[Positive] = None
    """Number of identities, at most all, with which an image is compared besides its own; drawn for each batch; null =
    all. With a number, time and memory of a step do not grow with the number of identities, and kvstore.tables=servers
    keeps the centres on servers."""
    flip: bool = False
    """If true, the embedding of an image is the normalised sum of those of the image and of its mirror image, as in
    published results of face verification."""
    neighbours: NonNegative = 5
    """Number of nearest training images in each row of `predict`; 0: none."""
    gallery_size: Positive = 20_000
    """Maximum number of training images in which `predict` searches for the nearest; of more, evenly spaced ones are
    used."""

    _without_centres: bool = pydantic.PrivateAttr(default=False)

    def without_centres(self) -> MetricLearning:
        """Returns the task of networks whose centres were left out."""
        task = self.model_copy()
        task._without_centres = True
        return task

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss = description.loss
        if not isinstance(loss, EmbeddingLoss):
            raise ConfigError(
                "task=metric_learning: a loss of your own must say whether it compares embeddings with centres or with "
                "each other: derive it from mxtrain.vision.metric_learning.losses.EmbeddingLoss."
            )
        if self.sampled_classes is not None and not loss.uses_centres:
            raise ConfigError(
                f"task.sampled_classes={self.sampled_classes}: this loss compares images with each other, not with "
                "centres of identities. Type task.sampled_classes=null, or loss=arcface."
            )
        if description.dataset.mixes:
            raise ConfigError(
                "dataset.augment mixes samples, and a mixed image has no identity. Switch mixup and cutmix off."
            )

    def output_names(self, signature: Signature) -> Sequence[str]:
        return ()

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        # Evaluation draws no identities, because losses of different draws would not be comparable.
        has_cosines = self._has_centres(description) and self.sampled_classes is None
        centres = [self.num_classes(signature)] * has_cosines
        return [(size,) for size in (self.embedding_size, *centres)]

    def _has_centres(self, description: RunParts) -> bool:
        assert isinstance(description.loss, EmbeddingLoss)
        return description.loss.uses_centres and not self._without_centres

    def _num_drawn(self, description: RunParts) -> Optional[int]:
        """Returns the number of identities that are drawn for each training batch; None if images are compared with
        all identities, or with none."""
        return self.sampled_classes if self._has_centres(description) else None

    def build_network(self, description: RunParts, signature: Signature) -> gluon.Block:
        from mxtrain.vision.metric_learning.head import EmbeddingNetwork, SampledEmbeddingNetwork

        loss, size = description.loss, self.embedding_size
        assert isinstance(loss, EmbeddingLoss)
        embedding = signature.build_network(description.model, size, [(size,)])
        num_classes = self.num_classes(signature) if self._has_centres(description) else 0
        num_drawn = self._num_drawn(description)
        if num_drawn is None:
            return EmbeddingNetwork(embedding, num_classes, size, loss.sub_centres, self.flip)
        if num_drawn > num_classes:
            raise ConfigError(
                f"task.sampled_classes={num_drawn:,}: the training images show {num_classes:,} identities. "
                f"Type task.sampled_classes={num_classes}, or null for all."
            )
        return SampledEmbeddingNetwork(embedding, num_classes, size, num_drawn, loss.sub_centres, self.flip)

    def training_shapes(self, description: RunParts, signature: Signature) -> Shapes:
        shape, num_drawn = shapes_of(signature.shape)[0], self._num_drawn(description)
        if num_drawn is None:
            return shape
        assert isinstance(description.loss, EmbeddingLoss)
        return shape, ((1 + num_drawn) * description.loss.sub_centres,)

    def build_collate(self, description: RunParts, signature: Signature, training: bool) -> Optional[Collate]:
        """See `Task.build_collate`. If identities are sampled, it adds the ids of centres to the inputs."""
        num_drawn, num_classes = self._num_drawn(description), self.num_classes(signature)
        if num_drawn is None or not training:
            return None
        loss, seed = description.loss, description.trainer.seed
        assert isinstance(loss, EmbeddingLoss)

        def collate(batch: Batch, epoch: int) -> Batch:
            from mxtrain.data.loading.placing import copy_to

            drawn_M = draw_classes(seed, epoch, batch.number, num_classes, num_drawn)
            id_BN = centre_ids(batch.targets[0].asnumpy().astype(np.int64), drawn_M, loss.sub_centres)
            return replace(batch, inputs=(*batch.inputs, copy_to(id_BN, batch.inputs[0].context)))

        return collate

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        from mxtrain.metric.meter import Meter, MeterOutputs

        if self.sampled_classes is None or not training:
            return super().build_meter(description, signature, weights, training)
        # Metrics cannot read the cosines of training, because their columns are other identities in each batch.
        outputs = MeterOutputs(num_arrays=2, num_read=1)
        return Meter(description.metric, self.num_classes(signature), weights, outputs, training=training)

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        from mxtrain.vision.metric_learning.head import IdentityLoss

        assert isinstance(description.loss, EmbeddingLoss)
        is_sampled = self.sampled_classes is not None
        return IdentityLoss(description.loss, self.num_classes(signature), training, is_sampled)

    def metrics(self, description: RunParts, signature: Signature) -> Mapping[str, Metric]:
        return {
            name: metric.for_size(self.embedding_size) if isinstance(metric, EmbeddingMetric) else metric
            for name, metric in description.metric.items()
        }

    def with_variants(self, variants: Sequence[ImageVariant]) -> MetricLearning:
        """Returns the task of networks that add the embedding of the mirror image; see `ComputesVariants`.

        Raises:
            ConfigError: there are other variants, or the network adds it already.
        """
        require_variants(variants, [FLIP], "embeddings are added for an image and its mirror image only")
        if self.flip:
            raise ConfigError("augment=flip: task.flip=true adds the mirror image already. Leave augment out.")
        task = self.model_copy(update={"flip": True})
        task._without_centres = self._without_centres
        return task

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the embeddings, (B, D)."""
        return outputs[0].astype("float32")

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        return {"embedding": [float(f"{number:.8g}") for number in prediction]}

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the identity of the sample; for pairs the number of the pair, and whether it is of one identity."""
        label = int(sample.targets[0])
        if label <= FIRST_PAIR:
            number, is_other = divmod(FIRST_PAIR - label, 2)
            return {"identity": f"pair {number}, {'two identities' if is_other else 'one identity'}"}
        return {"identity": class_name(signature.class_names, label)}

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        """Returns a table of samples, each with the nearest other one of them."""
        from mxtrain.vision.metric_learning.report import nearest_table

        return [nearest_table(signature, predictions, targets[0])]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.vision.metric_learning.report import EmbeddingReport

        return EmbeddingReport(self.build_decode(description, signature), signature, source)

    def explained(
        self, description: RunParts, signature: Signature, outputs: Tuple[NDArray, ...], batch: Batch
    ) -> Explained:
        """Explains the cosine with the nearest centre; without centres the similarity to the embedding itself."""
        from mxtrain.engine.backend import nd
        from mxtrain.task.explained import Explained

        names, label_B = signature.class_names, batch.targets[0].asnumpy().astype(int)
        true = [class_name(names, label) for label in label_B]
        if len(outputs) == 1:
            fixed_BD = outputs[0].astype("float32").detach()
            similarity_B = (fixed_BD * fixed_BD).sum(axis=1).asnumpy()
            return Explained(
                lambda outputs: (outputs[0].astype("float32") * fixed_BD).sum(axis=1),
                true,
                true,
                similarity_B,
                similarity_B >= 0,
            )
        cosine_BK = outputs[1].astype("float32")
        best_B = cosine_BK.argmax(axis=1)
        predicted_B = best_B.asnumpy().astype(int)
        return Explained(
            lambda outputs: nd.pick(outputs[1].astype("float32"), best_B),
            true,
            [names[predicted] for predicted in predicted_B],
            nd.relu(nd.pick(cosine_BK, best_B)).asnumpy(),
            predicted_B == label_B,
        )

    def prediction_format(self) -> PredictionFormat:
        return EmbeddingFormat(self)

    def export_form(self) -> TaskExport:
        return EmbeddingExport(self)


class EmbeddingFormat(PredictionFormat):
    """Rows of embeddings, and of the nearest training images."""

    task: MetricLearning

    def prepare(self, trained: Trained) -> None:
        from mxtrain.vision.metric_learning.gallery import gallery_of

        self._gallery = gallery_of(trained, self.task.gallery_size) if self.task.neighbours else None

    def rows(
        self, signature: Signature, source: Samples, predictions: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:
        gallery = getattr(self, "_gallery", None)
        for number, prediction in predictions:
            row = dict(self.task.row(signature, prediction, top_k))
            if gallery is not None:
                row = {"nearest": gallery.nearest(prediction, self.task.neighbours), **row}
            yield number, row

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns columns identity_1, similarity_1, file_1, ..., and embedding_0, ..."""
        cells: Dict[str, Json] = {
            f"{name}_{rank}": value
            for rank, neighbour in enumerate(row.get("nearest", ()), start=1)
            for name, value in neighbour.items()
        }
        cells.update((f"embedding_{number}", value) for number, value in enumerate(row["embedding"]))
        return cells


class EmbeddingExport(TaskExport):
    """Export of the embedding network, without class centres."""

    task: MetricLearning
    open_set: ClassVar[bool] = True
    has_loss: ClassVar[bool] = False

    @property
    def evaluates(self) -> bool:
        # Without sampled classes, evaluation computes the loss, which reads the centres.
        return self.task.sampled_classes is not None

    def exported_task(self) -> MetricLearning:
        return self.task.without_centres()

    def exported_weights(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return {name: array for name, array in arrays.items() if name not in CENTRES}
