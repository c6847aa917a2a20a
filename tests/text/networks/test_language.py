"""Shared parts of networks that predict the next token: chunks of the output layer, and generation token by token."""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.text.networks.language import MAX_CHUNKS, chunk_scores, generate, num_chunks

V = 50


class Remembering:
    """Likes best the token that is the sum of all that were read, and one."""

    def initial_state(self, batch_size: int, device: Any) -> List[Any]:
        return [nd.zeros((batch_size,))]

    def step(self, token_B: Any, place: int, memory: List[Any]) -> Tuple[Any, List[Any]]:
        assert token_B.dtype == np.int32
        sum_B = memory[0] + token_B.astype("float32")
        return nd.one_hot((sum_B + 1) % V, V), [sum_B]


def test_each_text_continues_behind_its_own_end() -> None:
    asked = []

    def choose(score_BV: np.ndarray, number_B: np.ndarray) -> np.ndarray:
        asked.append(number_B.tolist())
        return score_BV.argmax(axis=1)

    prompts = [np.array([3, 4, 5]), np.array([2]), np.array([7, 1])]
    found = generate(Remembering(), prompts, 3, choose, mx.cpu(0))
    assert [one.tolist() for one in found] == [[13, 26, 2], [3, 6, 12], [9, 18, 36]]
    # How many were chosen for each text; of those below 0 nothing is kept. The last step is asked for the longest.
    assert asked == [[-2, 0, -1], [-1, 1, 0], [0, 2, 1], [1, 3, 2], [2, 4, 3]]


def test_large_vocabularies_are_computed_in_parts() -> None:
    assert num_chunks("auto", 64, chunk_scores() // 64) == 1 and num_chunks("auto", 64, chunk_scores() // 64 + 1) == 2
    assert num_chunks("auto", 64, chunk_scores()) == MAX_CHUNKS
    assert num_chunks(3, 64, 10) == 3 and num_chunks(9, 4, 10) == 4, "no more than there are tokens"
