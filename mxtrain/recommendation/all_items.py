"""Scores of all items for the users of a batch.

Legend: B batch, C candidates at a time, H items of a history, I all items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, List, Optional, Tuple

import numpy as np

from mxtrain.recommendation.model import Recommender
from mxtrain.recommendation.signature import RecommendationSignature

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.parallel.base import Strategy
    from mxtrain.recommendation.base import InteractionDataset
    from mxtrain.recommendation.joined_rows import JoinedRows
    from mxtrain.types import Batch

SCORES_AT_ONCE = 1 << 17
"""Of users times candidates: a network that scores them one by one has a few vectors for each."""


class ScoresOfAllItems:
    """(outputs, batch) -> scores of all items for each user of a batch, (B, I), minus infinity for the user's items
    other than the sample's own.

    Args:
        description: of the run.
        signature: of the network.
        strategy: has the weights.
    """

    def __init__(self, description: Description, signature: Signature, strategy: Strategy) -> None:
        self._model, self._strategy, self._signature = description.model, strategy, signature
        self._dataset: InteractionDataset = description.dataset  # type: ignore[assignment]  # of its own samples
        self._num_items = len(RecommendationSignature.cast(signature).catalog.items)
        self._joined: Optional[JoinedRows] = None

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        from mxtrain.engine.backend import nd

        first = batch.inputs[0]
        if not isinstance(self._model, Recommender):
            scores = self._one_by_one_joined(first)
        else:
            inputs, at_once = (first, *batch.inputs[2:]), None
            if not self._strategy.remote.names:  # else no worker has the vectors of all items at once
                at_once = self._model.score_all(self._strategy.values, inputs)
            scores = self._one_by_one(*inputs) if at_once is None else at_once
        score_BI = scores.asnumpy()
        if batch.meta is not None:
            for row, has in enumerate(batch.meta):
                score_BI[row, has] = -np.inf
        return nd.array(score_BI, dtype="float32")

    def _one_by_one(self, user_B: NDArray, *history: NDArray) -> NDArray:
        from mxtrain.engine.backend import nd

        parts: List[NDArray] = []
        for begin, end in self._parts(len(user_B), 1, 0):
            item_C = nd.arange(begin, end, ctx=user_B.context, dtype="int32")
            item_BC = nd.broadcast_to(item_C.reshape((1, -1)), (len(user_B), len(item_C)))
            parts += self._strategy.predict((user_B, item_BC, *history))
        return _joined_scores(parts)

    def _one_by_one_joined(self, id_BK: NDArray) -> NDArray:
        """Does the same of a network that reads rows of features."""
        from mxtrain.engine.backend import nd

        if self._joined is None:
            self._joined = self._dataset.join(self._signature)
        joined = self._joined
        parts: List[NDArray] = []
        user_B = id_BK[:, 0].asnumpy().astype(np.int64)  # users are the first ids of the joined table
        for begin, end in self._parts(len(user_B), joined.item_IW.shape[1], joined.user_UV.shape[1]):
            item_BC = np.broadcast_to(np.arange(begin, end), (len(user_B), end - begin))
            given = [nd.array(one, ctx=id_BK.context, dtype=one.dtype) for one in joined.inputs(user_B, item_BC)]
            parts += self._strategy.predict(given)
        return _joined_scores(parts)

    def _parts(self, num_users: int, width: int, before: int) -> Iterator[Tuple[int, int]]:
        """Yields begin and end of the items scored at once: a candidate has `width` ids, after `before` ids of the
        user."""
        step = SCORES_AT_ONCE // num_users
        room = self._strategy.room_for_ids
        if room is not None:
            step = min(step, (room - before) // width)
        step = max(step, 1)
        for begin in range(0, self._num_items, step):
            yield begin, min(begin + step, self._num_items)


def _joined_scores(parts: List[NDArray]) -> NDArray:
    from mxtrain.engine.backend import nd

    parts = [part.astype("float32") for part in parts]
    return nd.concat(*parts, dim=1) if len(parts) > 1 else parts[0]
