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

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.parallel.base import Strategy
    from mxtrain.recommendation.base import InteractionDataset
    from mxtrain.recommendation.joined_rows import JoinedRows
    from mxtrain.types import Batch

SCORES_AT_ONCE = 1 << 17
"""Maximum number of pairs of user and candidate that a network scores at a time; each needs a few vectors."""


class ScoresOfAllItems:
    """Computes the scores of all items for each user of a batch, (B, I), minus infinity for items that the user has,
    except the item of the sample.

    Args:
        description: description of the run.
        signature: signature of the network.
        strategy: holds the weights.
    """

    def __init__(self, description: RunParts, signature: Signature, strategy: Strategy) -> None:
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
            inputs, all_scores = (first, *batch.inputs[2:]), None
            if not self._strategy.remote.names:  # otherwise no worker has the vectors of all items
                all_scores = self._model.score_all(self._strategy.values, inputs)
            scores = self._one_by_one(*inputs) if all_scores is None else all_scores
        score_BI = scores.asnumpy()
        if batch.meta is not None:
            for row, owned_items in enumerate(batch.meta):
                score_BI[row, owned_items] = -np.inf
        return nd.array(score_BI, dtype="float32")

    def _one_by_one(self, user_B: NDArray, *history: NDArray) -> NDArray:
        from mxtrain.engine.backend import nd

        parts: List[NDArray] = []
        for item_C in self._parts(len(user_B), 1, 0, self._strategy.id_limits.fixed.get(1)):
            row_1C = nd.array(item_C[None], ctx=user_B.context, dtype="int32")
            item_BC = nd.broadcast_to(row_1C, (len(user_B), len(item_C)))
            parts += self._strategy.predict((user_B, item_BC, *history))
        return self._joined_scores(parts)

    def _one_by_one_joined(self, id_BK: NDArray) -> NDArray:
        """Returns the scores of a network for features."""
        from mxtrain.engine.backend import nd

        if self._joined is None:
            # The feature tables are read once and not for every batch.
            self._joined = self._dataset.join(self._signature)
        joined = self._joined
        parts: List[NDArray] = []
        user_B = id_BK[:, 0].asnumpy().astype(np.int64)  # users are the first ids of the joined table
        width, before = joined.item_IW.shape[1], joined.user_UV.shape[1]
        for item_C in self._parts(len(user_B), width, before, self._strategy.id_limits.fixed.get(0)):
            item_BC = np.broadcast_to(item_C, (len(user_B), len(item_C)))
            inputs = [nd.array(array, ctx=id_BK.context, dtype=array.dtype) for array in joined.inputs(user_B, item_BC)]
            parts += self._strategy.predict(inputs)
        return self._joined_scores(parts)

    def _parts(self, num_users: int, width: int, before: int, fixed: Optional[int]) -> Iterator[np.ndarray]:
        """Yields the items scored at once.

        Args:
            num_users: number of users of the batch.
            width: number of ids of a candidate.
            before: number of ids of a user.
            fixed: number of ids that the network needs; the last item is repeated at the end. None: any number.
        """
        step = SCORES_AT_ONCE // num_users
        max_ids = self._strategy.id_limits.distinct
        if max_ids is not None:
            step = min(step, (max_ids - before) // width)
        if fixed is not None:
            step = (fixed - before) // width
        step = max(step, 1)
        for begin in range(0, self._num_items, step):
            end = begin + step if fixed is not None else min(begin + step, self._num_items)
            yield np.minimum(np.arange(begin, end), self._num_items - 1)

    def _joined_scores(self, parts: List[NDArray]) -> NDArray:
        from mxtrain.engine.backend import nd

        parts = [part.astype("float32") for part in parts]
        scores = nd.concat(*parts, dim=1) if len(parts) > 1 else parts[0]
        return scores[:, : self._num_items] if scores.shape[1] > self._num_items else scores
