"""The network of metric learning: an embedding of length 1, and its cosines with the centres of the identities.

The centres are parameters of the network and not of the loss, so strategies, stores and checkpoints treat them like all
others. Prediction and export leave them out.

Legend: B batch, D embedding size, K identities, S centres of each identity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Tuple, Union

from mxtrain.engine.backend import gluon, mx

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


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
        """Returns the names of parameters in files of the embedding network alone, see `load_weights`."""
        names: Dict[str, str] = getattr(self.embedding, "backbone_names", {})
        return {f"embedding.{name}": file_name for name, file_name in names.items()}

    def without_centres(self) -> EmbeddingNetwork:
        """Returns the network whose only output is the embedding, over the same parameters."""
        return EmbeddingNetwork(self.embedding, 0, self._units, flip=self._flip, prefix=self.prefix)

    def hybrid_forward(self, F: OperatorModule, x: Array, **weights: Array) -> Union[Array, Tuple[Array, Array]]:
        embedding_BD = self.embedding(x)
        if self._flip:
            embedding_BD = embedding_BD + self.embedding(F.flip(x, axis=3))
        embedding_BD = F.L2Normalization(embedding_BD)
        if not self._num_classes:
            return embedding_BD
        # Not a dense layer: in 16 bits, cosines times a scale of 64 would be wrong by 0.25.
        cosine = F.dot(embedding_BD, F.L2Normalization(weights["centres"]), transpose_b=True)
        if self._sub_centres > 1:
            cosine = F.max(F.reshape(cosine, shape=(0, self._num_classes, self._sub_centres)), axis=2)
        return embedding_BD, cosine
