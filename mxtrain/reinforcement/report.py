"""Report of `eval` for episodes, besides mean values.

Legend: N episodes, X facts about an episode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Sequence, Tuple, Union

import numpy as np

from mxtrain.reinforcement.policy import FACTS
from mxtrain.task.report import Report
from mxtrain.types import Artifact, Table

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types import Batch


class EpisodeReport(Report):
    """Return and length of each episode, and how much they differ."""

    def __init__(self) -> None:
        self._found: List[Tuple[np.ndarray, NDArray]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        assert batch.index_B is not None
        self._found.append((batch.index_B, batch.targets[0]))

    def artifacts(self, title: str) -> List[Artifact]:
        index_N = np.concatenate([index for index, _ in self._found])
        facts_NX = np.concatenate([facts.asnumpy() for _, facts in self._found]).astype(np.float64)
        order = np.argsort(index_N, kind="stable")
        return_N, length_N = (facts_NX[order, FACTS.index(name)] for name in ("return", "length"))
        rows = [[int(index), float(found), int(length)]
                for index, found, length in zip(index_N[order], return_N, length_N)]  # fmt: skip
        spread: List[Sequence[Union[str, float]]] = [
            [name, float(function(return_N)), float(function(length_N))]
            for name, function in (("mean", np.mean), ("deviation", np.std), ("least", np.min), ("most", np.max))
        ]
        return [
            Table("returns", ["over episodes", "return", "length"], spread),
            Table("episodes", ["episode", "return", "length"], rows, is_shown=False),
        ]
