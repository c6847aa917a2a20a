"""Kneser-Ney models against the formula written out with dictionaries."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Tuple

import numpy as np
import pytest

from mxtrain.task.ngrams import KneserNey

V = 6
RNG = np.random.RandomState(0)
TRAINED = RNG.choice(V - 1, 300, p=[0.4, 0.3, 0.15, 0.1, 0.05])  # the last token never occurs
MEASURED = RNG.randint(0, V, 40)

Counts = Dict[Tuple[int, ...], int]


def counts_of(order: int) -> List[Counts]:
    """By length: raw counts of the longest n-grams, and of shorter ones how many different tokens stand before."""
    tokens = [int(token) for token in TRAINED]
    grams = {n: [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)] for n in range(1, order + 1)}
    found: List[Counts] = []
    for n in range(1, order):
        found.append(Counter(gram[1:] for gram in set(grams[n + 1])))
    return [*found, Counter(grams[order])]


def probability(counts: List[Counts], context: Tuple[int, ...], token: int) -> float:
    if not counts:
        return 1 / V
    own, n = counts[-1], len(counts)
    context = context[len(context) - (n - 1) :] if n > 1 else ()
    once, twice = (sum(count == times for count in own.values()) for times in (1, 2))
    discount = once / (once + 2 * twice) if once else 0.5
    following = {gram: count for gram, count in own.items() if gram[:-1] == context}
    lower = probability(counts[:-1], context, token)
    total = sum(following.values())
    if not total:
        return lower
    kept = max(following.get((*context, token), 0) - discount, 0)
    return (kept + discount * len(following) * lower) / total


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_match_the_formula(order: int) -> None:
    counts = counts_of(order)
    found = KneserNey(TRAINED, order, V).log_probabilities(MEASURED)
    tokens = [int(token) for token in MEASURED]
    for place in range(order, len(tokens)):  # the first ones have less before them
        wanted = probability(counts, tuple(tokens[:place]), tokens[place])
        assert np.exp(found[place - 1]) == pytest.approx(wanted, rel=1e-9)


def test_probabilities_of_all_tokens_sum_to_one() -> None:
    model = KneserNey(TRAINED, 4, V)
    for context in ([0, 1, 2], [4, 4, 4], [5, 0, 5], [1, 5, 5]):
        total = sum(np.exp(model.log_probabilities(np.array([*context, token]))[-1]) for token in range(V))
        assert total == pytest.approx(1.0, rel=1e-12)
