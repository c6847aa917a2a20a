"""Dense layers on the categories and numbers of a table.

Legend: B batch, F fields, N numbers, U units, K outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from mxtrain.engine.backend import gluon
from mxtrain.model.networks.embedding_table import EmbeddingTable

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class EmbeddedMLP(gluon.HybridBlock):
    """Applies dense layers to the concatenated embeddings of ids (B, F), and to numbers (B, N) if the table has any.
    Returns (B, K).

    Args:
        mlp: network of inputs (B, F * U + N).
        field_sizes: number of ids of each field.
        units: U.
    """

    def __init__(self, mlp: gluon.Block, field_sizes: Sequence[int], units: int, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.table = EmbeddingTable(sum(field_sizes), units)
        self.mlp = mlp

    def hybrid_forward(self, F: OperatorModule, id_BF: Array, *numbers: Array) -> Array:
        vector_BD = F.flatten(self.table(id_BF))
        return self.mlp(F.concat(vector_BD, *numbers, dim=1) if numbers else vector_BD)
