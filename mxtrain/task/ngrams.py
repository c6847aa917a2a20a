"""Interpolated Kneser-Ney n-gram models, the baseline of language models.

Source: Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling" (1998), section 2.7, with
one discount for each order, of section 2.6.

Legend: N tokens, U distinct n-grams, C distinct contexts (the first n - 1 tokens), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence

import numpy as np

UNKNOWN = -1
USUAL_DISCOUNT = 0.5
"""Discount if no n-gram occurs once, so that probability remains for unseen n-grams."""


@dataclass(frozen=True)
class Ngrams:
    """The n-grams of one length n in the training text.

    Attributes:
        key_U: sorted keys: number of the context among the (n - 1)-grams, times V, plus the last token.
        count_U: count of each n-gram. For the largest n, its occurrences; otherwise the number of distinct tokens that
            precede it (Kneser-Ney's continuation count).
        sum_C, different_C: for each context, the sum of these counts and the number of nonzero ones.
        discount: absolute discount, subtracted from each count.
    """

    key_U: np.ndarray
    count_U: np.ndarray
    sum_C: np.ndarray
    different_C: np.ndarray
    discount: float


class KneserNey:
    """Interpolated Kneser-Ney language model.

    Args:
        token_N: tokens of the training text.
        order: largest length n of n-grams.
        vocab_size: V.
    """

    def __init__(self, token_N: np.ndarray, order: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        token_N = token_N.astype(np.int64)
        numbers: List[np.ndarray] = [np.zeros(len(token_N) + 1, np.int64)]  # number of the n-gram before each position
        keys, firsts = [], []
        for length in range(1, order + 1):
            context = numbers[-1][:-1] if length == 1 else numbers[-1]
            # Context and token as one integer: sorting integers is faster than sorting rows.
            key = context[: len(token_N) - length + 1] * vocab_size + token_N[length - 1 :]
            key_U, first_U, number = np.unique(key, return_index=True, return_inverse=True)
            keys.append(key_U)
            firsts.append(first_U)
            numbers.append(number)
        self._lengths = []
        for length in range(1, order + 1):
            size = len(keys[length - 1])
            if length == order:
                count_U = np.bincount(numbers[length], minlength=size)
            else:  # number of distinct preceding tokens: the n-gram without its first token begins one later
                count_U = np.bincount(numbers[length][firsts[length] + 1], minlength=size)
            self._lengths.append(self._make(keys[length - 1], count_U, len(keys[length - 2]) if length > 1 else 1))

    def _make(self, key_U: np.ndarray, count_U: np.ndarray, num_contexts: int) -> Ngrams:
        context_U = key_U // self._vocab_size
        sum_C = np.bincount(context_U, weights=count_U, minlength=num_contexts)
        different_C = np.bincount(context_U, weights=count_U > 0, minlength=num_contexts)
        # Discount n1 / (n1 + 2 n2) of absolute discounting, from the numbers of n-grams that occur once and twice.
        once, twice = (int((count_U == times).sum()) for times in (1, 2))
        return Ngrams(key_U, count_U, sum_C, different_C, once / (once + 2 * twice) if once else USUAL_DISCOUNT)

    def log_probabilities(self, token_N: np.ndarray) -> np.ndarray:
        """Returns the natural logarithm of the probability of each token given those before it, (N - 1,).

        Each order refines the probability of the lower order, starting from the uniform distribution.
        """
        token_N = token_N.astype(np.int64)
        result_N = np.full(len(token_N), 1.0 / self._vocab_size)  # order 0: the uniform distribution
        number_N = np.zeros(len(token_N), np.int64)  # number of the context of each token
        for order in self._lengths:
            has_context_N = number_N != UNKNOWN
            context_N = np.where(has_context_N, number_N, 0)
            key_N = context_N * self._vocab_size + token_N
            position_N = np.minimum(np.searchsorted(order.key_U, key_N), len(order.key_U) - 1)
            is_counted_N = has_context_N & (order.key_U[position_N] == key_N)
            count_N = np.where(is_counted_N, order.count_U[position_N], 0)
            sum_N = np.where(has_context_N, order.sum_C[context_N], 0)
            backoff_N = order.discount * order.different_C[context_N]
            interpolated_N = (np.maximum(count_N - order.discount, 0) + backoff_N * result_N) / np.maximum(sum_N, 1)
            # After a context that training has not seen, the probability of the lower order stays.
            result_N = np.where(sum_N > 0, interpolated_N, result_N)
            ngram_N = np.where(is_counted_N, position_N, UNKNOWN)
            number_N = np.concatenate([[UNKNOWN], ngram_N[:-1]])
        return np.log(result_N[1:])

    def next_probabilities(self, context: Sequence[int]) -> np.ndarray:
        """Returns the probability of each token after a context, (V,)."""
        result_V = np.full(self._vocab_size, 1.0 / self._vocab_size)
        last_tokens = list(context)[max(len(context) - len(self._lengths) + 1, 0) :]
        for length, order in enumerate(self._lengths):  # n-grams of length + 1 tokens, whose context has `length`
            if length > len(last_tokens):
                break
            number = self._number_of(last_tokens[len(last_tokens) - length :])
            if number == UNKNOWN or not order.sum_C[number]:
                continue
            begin, end = np.searchsorted(order.key_U, [number * self._vocab_size, (number + 1) * self._vocab_size])
            count_V = np.zeros(self._vocab_size)
            count_V[order.key_U[begin:end] - number * self._vocab_size] = order.count_U[begin:end]
            backoff = order.discount * order.different_C[number]
            result_V = (np.maximum(count_V - order.discount, 0) + backoff * result_V) / order.sum_C[number]
        return result_V

    def _number_of(self, tokens: Sequence[int]) -> int:
        """Returns the index of an n-gram among n-grams of its length, or `UNKNOWN`."""
        number = 0
        for token, order in zip(tokens, self._lengths):
            key = number * self._vocab_size + token
            place = int(np.searchsorted(order.key_U, key))
            if place == len(order.key_U) or order.key_U[place] != key:
                return UNKNOWN
            number = place
        return number
