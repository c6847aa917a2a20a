"""One vector for each id: the table of a network for recommendation or for categorical columns.

Legend: B batch, F fields, R rows, U units.
"""

from __future__ import annotations

from typing import Any

from mxtrain.engine.backend import gluon, mx


class EmbeddingTable(gluon.HybridBlock):
    """Ids (B, F) int32 to vectors (B, F, U).

    Args:
        num_rows: R; ids are from 0 to this.
        units: U.
        scale: standard deviation of the normal distribution that vectors are drawn from.
    """

    def __init__(self, num_rows: int, units: int, scale: float = 0.01, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_rows, self.units = num_rows, units
        self.weight = self.params.get("weight", shape=(num_rows, units), init=mx.init.Normal(scale))

    def hybrid_forward(self, F, id_BF, weight):
        return F.Embedding(id_BF, weight, self.num_rows, self.units)
