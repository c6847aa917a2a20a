"""Losses of a few candidates, for networks that score all items. Imports MXNet.

Legend: B batch, C candidates, I all items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class CandidateLoss(gluon.HybridBlock):
    """Applies a loss of candidates to the scores of all items.

    Args:
        loss: block (scores (B, C), candidates (B, C)) -> loss.
    """

    def __init__(self, loss: gluon.Block, **kwargs: Any):
        super().__init__(**kwargs)
        self.weighted = getattr(loss, "weighted", False)
        self.loss = loss

    def hybrid_forward(self, F: OperatorModule, score_BI: Array, item_BC: Array) -> Any:
        # Padding needs the score of some item; the loss leaves it out.
        known_BC = F.broadcast_maximum(item_BC, F.zeros_like(F.slice_axis(item_BC, axis=1, begin=0, end=1)))
        row_BC = F.broadcast_like(F.expand_dims(F.contrib.arange_like(item_BC, axis=0), axis=1), item_BC, (1,), (1,))
        return self.loss(F.gather_nd(score_BI, F.stack(row_BC, known_BC, axis=0)), item_BC)
