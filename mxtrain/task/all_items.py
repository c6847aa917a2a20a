"""Scores of all items for the users of a batch.

Legend: B batch, C candidates at a time, H items of a history, I all items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Tuple

import numpy as np

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.dataset.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.parallel.base import Strategy
    from mxtrain.types import Batch

SCORES_AT_ONCE = 1 << 17
"""Of users times candidates: a network that scores them one by one has a few vectors for each."""


class ScoresOfAllItems:
    """(outputs, batch) -> the scores of all items for each user of a batch, (B, I), minus infinity of those that the
    user has beside the sample's own.

    Args:
        description: of the run.
        signature: of the network.
        strategy: has the weights.
    """

    def __init__(self, description: Description, signature: Signature, strategy: Strategy) -> None:
        assert signature.catalog is not None
        self._model, self._strategy = description.model, strategy
        self._num_items = len(signature.catalog.items)

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        from mxtrain.engine.backend import nd

        user_B, _, *history = batch.inputs
        scores = None
        if self._strategy.served is None:  # or no worker has the vectors of all items at once
            scores = self._model.score_all(self._strategy.values, (user_B, *history))
        if scores is None:
            scores = self._one_by_one(user_B, history)
        score_BI = scores.asnumpy()
        if batch.meta is not None:
            for row, has in enumerate(batch.meta):
                score_BI[row, has] = -np.inf
        return nd.array(score_BI, dtype="float32")

    def _one_by_one(self, user_B: NDArray, history: List[NDArray]) -> NDArray:
        from mxtrain.engine.backend import nd

        step, parts = max(SCORES_AT_ONCE // len(user_B), 1), []
        for begin in range(0, self._num_items, step):
            item_C = nd.arange(begin, min(begin + step, self._num_items), ctx=user_B.context, dtype="int32")
            item_BC = nd.broadcast_to(item_C.reshape((1, -1)), (len(user_B), len(item_C)))
            (part,) = self._strategy.predict((user_B, item_BC, *history))
            parts.append(part.astype("float32"))
        return nd.concat(*parts, dim=1) if len(parts) > 1 else parts[0]
