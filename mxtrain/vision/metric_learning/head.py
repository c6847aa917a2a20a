"""The network of metric learning: an embedding of length 1, and its cosines with the centres of the identities.

The centres are parameters of the network and not of the loss, so strategies, stores and checkpoints treat them like all
others. Prediction and export leave them out.

Legend: B batch, D embedding size, K identities, S centres of each identity, M drawn identities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping, Tuple, Union

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.model.networks.embedding_table import EmbeddingTable
from mxtrain.model.networks.train_predict_block import TrainPredictBlock

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule
    from mxtrain.vision.metric_learning.losses import EmbeddingLoss


FC7 = "fc7_weight"
"""Name of the class centres in files of insightface's MXNet code."""


class EmbeddingNetwork(gluon.HybridBlock):
    """Image -> (embedding (B, D), cosines (B, K)).

    A cosine is that of the embedding and the nearest centre of an identity.

    Args:
        embedding: network that embeds images, (B, D), not normalised.
        num_classes: K; 0: without centres, the only output is the embedding.
        units: D.
        sub_centres: S. Source: Deng et al., "Sub-center ArcFace", ECCV 2020.
        flip: if True, the embedding is the sum of those of the image and of its mirror image, before it is normalised.
    """

    class_row_names: ClassVar[Mapping[str, str]] = {"centres": FC7}
    tables_advice = "Type task.sampled_classes=NUMBER, which makes a table of the centres"

    def __init__(
        self,
        embedding: gluon.Block,
        num_classes: int,
        units: int,
        sub_centres: int = 1,
        flip: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._num_classes, self._units, self._sub_centres, self._flip = num_classes, units, sub_centres, flip
        self.embedding = embedding
        if num_classes:
            shape = (num_classes * sub_centres, units)
            with self.name_scope():
                self.centres = self.params.get("centres", shape=shape, init=mx.init.Normal(0.01))

    @property
    def backbone_names(self) -> Mapping[str, str]:
        """See the function `backbone_names`."""
        return backbone_names(self.embedding)

    def hybrid_forward(self, F: OperatorModule, x: Array, **weights: Array) -> Union[Array, Tuple[Array, Array]]:
        embedding_BD = embed(F, self.embedding, x, self._flip)
        if not self._num_classes:
            return embedding_BD
        # Not a dense layer: in 16 bits, cosines times a scale of 64 would be wrong by 0.25.
        cosine = F.dot(embedding_BD, F.L2Normalization(weights["centres"]), transpose_b=True)
        if self._sub_centres > 1:
            cosine = F.max(F.reshape(cosine, shape=(0, self._num_classes, self._sub_centres)), axis=2)
        return embedding_BD, cosine


NOT_COMPARED = -1e4
"""Replaces the cosine of a sample with a drawn class that is its own one, which is already in the first column. In a
softmax, its exponential is 0."""


class SampledEmbeddingNetwork(TrainPredictBlock):
    """In prediction image -> embedding (B, D); in training (image, ids of centres) -> (embedding, cosines (B, 1 + M)).

    The first cosine is that of the sample's own class, the others are those of the drawn classes. The centres are an
    embedding table, so a strategy may hold only the rows of a batch.

    Args:
        embedding: network that embeds images, (B, D), not normalised.
        num_classes: K.
        units: D.
        num_drawn: M.
        sub_centres: S.
        flip: see `EmbeddingNetwork`.
    """

    class_row_names: ClassVar[Mapping[str, str]] = {"centres.weight": FC7}

    def __init__(
        self,
        embedding: gluon.Block,
        num_classes: int,
        units: int,
        num_drawn: int,
        sub_centres: int = 1,
        flip: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._units, self._sub_centres, self._flip = units, sub_centres, flip
        self.embedding = embedding
        # Prediction does not use the table. A hybridized block that contained it would warn about an unused parameter.
        object.__setattr__(self, "_prediction_form", self.without_centres())
        with self.name_scope():
            self.centres = EmbeddingTable(num_classes * sub_centres, units, prefix="centres_")
        self.centres.num_shared = num_drawn * sub_centres

    @property
    def backbone_names(self) -> Mapping[str, str]:
        return backbone_names(self.embedding)

    def without_centres(self) -> EmbeddingNetwork:
        """Returns the network whose only output is the embedding, over the same parameters."""
        return EmbeddingNetwork(self.embedding, 0, self._units, flip=self._flip, prefix=self.prefix)

    def train_forward(self, F: OperatorModule, x: Array, *annotations: Array) -> Any:
        (id_BN,) = annotations
        embedding_BD = embed(F, self.embedding, x, self._flip)
        own_BS = F.slice_axis(id_BN, axis=1, begin=0, end=self._sub_centres)
        # The drawn classes are the same for all samples, so they are read from the first one.
        drawn_1N = F.slice_axis(F.slice_axis(id_BN, axis=0, begin=0, end=1), axis=1, begin=self._sub_centres, end=None)
        own_BSD = F.reshape(self._unit_rows(F, own_BS), shape=(-1, self._sub_centres, self._units))
        own_B1 = F.max(F.sum(F.broadcast_mul(own_BSD, F.expand_dims(embedding_BD, 1)), axis=2), axis=1, keepdims=True)
        cosine_BN = F.dot(embedding_BD, self._unit_rows(F, drawn_1N), transpose_b=True)
        cosine_BM = F.max(F.reshape(cosine_BN, shape=(0, -1, self._sub_centres)), axis=2)
        is_own_BM = F.broadcast_equal(self._first(F, own_BS), F.reshape(self._first(F, drawn_1N), shape=(1, -1)))
        cosine_BM = F.where(is_own_BM, F.zeros_like(cosine_BM) + NOT_COMPARED, cosine_BM)
        return embedding_BD, F.concat(own_B1, cosine_BM, dim=1)

    def _unit_rows(self, F: OperatorModule, ids: Array) -> Array:
        """Returns the centres with these ids, normalised to length 1, (number of ids, D)."""
        return F.L2Normalization(F.reshape(self.centres(ids), shape=(-1, self._units)))

    def _first(self, F: OperatorModule, ids: Array) -> Array:
        """Returns the id of the first centre of each class, (number of classes, 1)."""
        return F.slice_axis(F.reshape(ids, shape=(-1, self._sub_centres)), axis=1, begin=0, end=1)


def embed(F: OperatorModule, embedding: gluon.Block, x: Array, flip: bool) -> Array:
    """Returns embeddings of length 1, (B, D)."""
    embedding_BD: Any = embedding(x)
    if flip:
        embedding_BD = embedding_BD + embedding(F.flip(x, axis=3))
    return F.L2Normalization(embedding_BD)


def backbone_names(embedding: gluon.Block) -> Mapping[str, str]:
    """Maps parameters of the embedding network, by their names in the whole network, to their names in weight files of
    the embedding network alone; see `load_weights`."""
    names: Dict[str, str] = getattr(embedding, "backbone_names", {})
    return {f"embedding.{name}": file_name for name, file_name in names.items()}


class IdentityLoss(gluon.HybridBlock):
    """Loss of (embedding (B, D), cosines (B, K), identity (B,)), or of (embedding, identity) without centres.

    In evaluation, samples of unknown identities have no weight: for them the loss is not defined, e.g. for pairs.

    Args:
        loss: description of the loss.
        num_classes: K.
        training: False for evaluation.
        is_sampled: True if the first cosine of a sample is that of its own identity, and the others are those of drawn
            identities.
    """

    def __init__(self, loss: EmbeddingLoss, num_classes: int, training: bool, is_sampled: bool = False):
        super().__init__()
        self._is_sampled = is_sampled
        self._loss, self._num_classes, self._training = loss, num_classes, training
        self.weighted = loss.weighted or not training
        self.least_weight = loss.least_weight

    def __call__(self, *arrays: Array) -> Any:
        *outputs, class_B = arrays
        if self._loss.uses_centres and len(outputs) == 1:  # a network whose centres were left out
            zero_B: Any = nd.zeros_like(class_B)
            return zero_B, zero_B
        # A hybridized block warns about unused inputs.
        return super().__call__(outputs[1 if self._loss.uses_centres else 0], class_B)

    def hybrid_forward(self, F: OperatorModule, first: Array, class_B: Array) -> Any:
        found = self._loss.compute(F, first, F.zeros_like(class_B) if self._is_sampled else class_B)
        if self._training:
            return found
        loss_B, weight_B = found if self._loss.weighted else (found, F.ones_like(class_B))
        if not self._loss.uses_centres:
            return loss_B, weight_B
        is_known_B = (class_B >= 0) * (class_B < self._num_classes)
        return F.where(is_known_B, loss_B, F.zeros_like(loss_B)), weight_B * is_known_B
