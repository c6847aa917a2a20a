"""Beam search over networks that give the next token's probabilities, for all sentences of a batch at once.
Exported folders have a copy of this module.

Legend: S sentences of a batch, A active sentences, K beams, N candidates or results, R rows of the network
(sentences x beams), V vocabulary, G groups of tokens, M anything, T tokens.

Source: the length penalty is that of Wu et al., "Google's Neural Machine Translation System",
https://arxiv.org/abs/1609.08144, section 7.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import numpy as np

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

MOST_ROUNDS = 64
"""So many of the largest values are found faster one after the other than by sorting."""


class StepDecoder(Protocol):
    """A network that can be asked for one token after the other, each row by itself.

    What it remembers are arrays whose first axis are sentences or rows. Sentences that are finished are left out, so it
    must take any number of them.
    """

    def initial_state(self, *inputs: NDArray) -> Tuple[List[NDArray], List[NDArray]]:
        """Returns the state of each sentence before the first token: (fixed, moving).

        `fixed` has one row for each sentence, which its beams share, and stays as it is (encoded sources, their
        lengths); `moving` is what `step` returns anew (keys and values of what was read, states), and is repeated for
        the beams.
        """

    def step(
        self, token_R: NDArray, place: int, fixed: List[NDArray], moving: List[NDArray]
    ) -> Tuple[NDArray, List[NDArray]]:
        """Logarithms of probabilities (R, V), float32, of the token behind one, and what moves.

        Args:
            token_R: the tokens that are read, int32; the first ones are `Beam.bos`.
            place: how many were read before.
            fixed: of each sentence, A: the rows of a sentence are R / A after one another, 1 in the first step and K in
                all others.
            moving: of each row.
        """


@dataclass(frozen=True)
class Beam:
    """Settings of beam search.

    Attributes:
        bos: the token that is read first.
        eos: the token that ends a sequence.
        size: K; 1 = always the likeliest token (greedy).
        length_penalty: alpha: sequences are compared by log p / ((5 + tokens) / 6) ^ alpha, where <eos> counts as a
            token; 0 = by log p.
        never: tokens that are not chosen, such as <pad>.
    """

    bos: int
    eos: int
    size: int = 4
    length_penalty: float = 0.6
    never: Sequence[int] = ()

    def penalty(self, length: np.ndarray) -> np.ndarray:
        """Returns the length penalty: the divisor of the log p of sequences of `length` tokens, <eos> included."""
        return ((5.0 + length) / 6.0) ** self.length_penalty


class LengthLimits(NamedTuple):
    """Length limits of generated sequences.

    Attributes:
        ratio: tokens for each token (or frame) of the source.
        offset: tokens besides.
        most: tokens at most.
        longest: tokens that the network can see, the first one included; None: any number.
    """

    ratio: float
    offset: int
    most: int
    longest: Optional[int] = None

    def of(self, length_B: np.ndarray) -> np.ndarray:
        """Tokens of each sequence at most."""
        limit_B = np.floor(self.ratio * length_B.astype(np.float64)).astype(np.int64) + self.offset
        most = self.most if self.longest is None else min(self.most, self.longest - 1)
        return np.minimum(limit_B, most)


@dataclass(frozen=True)
class Hypotheses:
    """The best sequences of each sentence, best first; empty ones of score -inf where fewer were found.

    Attributes:
        token_SNT: int32, without <eos>, and filled up with it.
        length_SN: tokens, without <eos>.
        score_SN: log p divided by the penalty, float64.
    """

    token_SNT: np.ndarray
    length_SN: np.ndarray
    score_SN: np.ndarray


def beam_search(
    decoder: StepDecoder, inputs: Sequence[NDArray], limit_S: np.ndarray, beam: Beam, num_best: int = 1
) -> Hypotheses:
    """Searches the likeliest sequence of each sentence.

    In each step the likeliest 2 * K sequences of a sentence that are one token longer are looked at. Those among the
    first K that end are finished, and the first K that do not end go on. At a sentence's limit all must end. A sentence
    is done when K sequences are finished and none that goes on would be better than the `num_best` best of them if it
    ended now, or when none can become better: its log p only falls, so it is at best what it is now over the penalty of
    the longest sequence. (K finished ones alone are no reason: where one sequence is by far the likeliest, its unlikely
    ends are finished before it is.) Sentences that are done leave the batch.

    Of equal scores the lower beam and the lower token come first. Scores are summed in float64 on the host, so which
    sentences share a batch changes nothing but what the network makes of it.

    Args:
        decoder: is asked.
        inputs: of `begin`, on the device where the network is, S rows each.
        limit_S: tokens of each sentence at most, without <eos>.
        beam: how to search.
        num_best: N, at most K.
    """
    from mxtrain.engine.backend import autograd, nd

    assert 1 <= num_best <= beam.size
    search = BeamSteps(limit_S, beam, num_best)
    if not len(limit_S):
        return search.found()
    device = inputs[0].context
    with autograd.pause(train_mode=False):
        fixed, moving = decoder.initial_state(*inputs)
        num_sentences = len(limit_S)
        token = nd.array(np.full(num_sentences, beam.bos), ctx=device, dtype="int32")
        for place in itertools.count():
            log_p, moving = decoder.step(token, place, fixed, moving)
            row_R, before = search.advance(log_p.asnumpy()), len(token)
            if not len(row_R):
                return search.found()
            # To copy an array to the device waits for all that was asked before, so this comes before `take`.
            token = nd.array(search.last_tokens(), ctx=device, dtype="int32")
            if len(row_R) != before or (row_R != np.arange(before)).any():
                row = nd.array(row_R, ctx=device, dtype="int32")
                moving = [nd.take(array, row) for array in moving]
            if len(row_R) != num_sentences * beam.size:
                on_A = row_R[:: beam.size] // (before // num_sentences)
                num_sentences = len(on_A)
                sentence = nd.array(on_A, ctx=device, dtype="int32")
                fixed = [nd.take(array, sentence) for array in fixed]
    raise AssertionError("counting does not end")


class BeamSteps:
    """State of the search for all sequences of a batch.

    Args:
        limit_S: see `beam_search`.
        beam: likewise.
        num_best: likewise.
    """

    def __init__(self, limit_S: np.ndarray, beam: Beam, num_best: int) -> None:
        self._beam, self._num_best = beam, num_best
        self._limit_S = np.asarray(limit_S, np.int64)
        num, longest = len(self._limit_S), int(self._limit_S.max(initial=0))
        assert self._limit_S.min(initial=0) >= 0
        # At most K are finished before a step in which K more may be.
        slots = 2 * beam.size
        self._done_token = np.full((num, slots, longest), beam.eos, np.int32)
        self._done_length = np.zeros((num, slots), np.int64)
        self._done_score = np.full((num, slots), -np.inf)
        self._done_count_S = np.zeros(num, np.int64)
        # Rows of active sentences: before the first step each sentence has one row.
        self._sentence_A = np.arange(num)
        self._score_AK = np.zeros((num, 1))
        self._token_AKT = np.full((num, 1, longest), beam.eos, np.int32)
        self._length = 0

    def advance(self, log_p_RV: np.ndarray) -> np.ndarray:
        """Takes a step; returns the previous row of each continued beam. Overwrites `log_p_RV`."""
        (num, beams), width = self._score_AK.shape, self._beam.size
        log_p_AKV = log_p_RV.reshape(num, beams, -1)
        self._forbid(log_p_AKV)
        score_AN, index_AN = best_candidates(self._score_AK, log_p_AKV, 2 * width)
        parent_AN, token_AN = np.divmod(index_AN, log_p_AKV.shape[2])
        ends_AN = token_AN == self._beam.eos
        self._finish(score_AN[:, :width], parent_AN[:, :width], ends_AN[:, :width])
        # At most one of each beam ends, so K of 2 * K go on.
        chosen_AK = np.argsort(ends_AN, axis=1, kind="stable")[:, :width]
        score_AK, parent_AK, token_AK = (
            np.take_along_axis(one, chosen_AK, axis=1) for one in (score_AN, parent_AN, token_AN)
        )
        score_AK[np.take_along_axis(ends_AN, chosen_AK, axis=1)] = -np.inf
        on_A = np.flatnonzero(self._goes_on(score_AK[:, 0]))
        self._token_AKT = self._token_AKT[on_A[:, None], parent_AK[on_A]]
        if self._length < self._token_AKT.shape[2]:
            self._token_AKT[:, :, self._length] = token_AK[on_A]
        self._score_AK, self._sentence_A = score_AK[on_A], self._sentence_A[on_A]
        self._length += 1
        return (on_A[:, None] * beams + parent_AK[on_A]).ravel()

    def _forbid(self, log_p_AKV: np.ndarray) -> None:
        """Leaves what may be chosen: at a sentence's limit only the end."""
        log_p_AKV[:, :, list(self._beam.never)] = -np.inf
        at_limit_A = self._limit_S[self._sentence_A] <= self._length
        if at_limit_A.any():
            end = log_p_AKV[at_limit_A, :, self._beam.eos]
            log_p_AKV[at_limit_A] = -np.inf
            log_p_AKV[at_limit_A, :, self._beam.eos] = end

    def _finish(self, score_AK: np.ndarray, parent_AK: np.ndarray, ends_AK: np.ndarray) -> None:
        """Keeps candidates that end."""
        ends_AK = ends_AK & (score_AK > -np.inf)
        active, rank = np.nonzero(ends_AK)
        sentence = self._sentence_A[active]
        slot = self._done_count_S[sentence] + (np.cumsum(ends_AK, axis=1) - 1)[active, rank]
        self._done_token[sentence, slot] = self._token_AKT[active, parent_AK[active, rank]]
        self._done_length[sentence, slot] = self._length
        self._done_score[sentence, slot] = score_AK[active, rank] / self._beam.penalty(np.array(self._length + 1))
        self._done_count_S[self._sentence_A] += ends_AK.sum(axis=1)
        self._keep_best(np.flatnonzero(self._done_count_S > self._beam.size))

    def _keep_best(self, full_F: np.ndarray) -> None:
        """Forgets all but the best K that are finished, of sentences with more."""
        if not len(full_F):
            return
        order_FN = np.argsort(-self._done_score[full_F], axis=1, kind="stable")
        for array in (self._done_score, self._done_length):
            array[full_F] = np.take_along_axis(array[full_F], order_FN, axis=1)
        self._done_token[full_F] = np.take_along_axis(self._done_token[full_F], order_FN[:, :, None], axis=1)
        self._done_score[full_F, self._beam.size :] = -np.inf
        self._done_count_S[full_F] = self._beam.size

    def _goes_on(self, best_A: np.ndarray) -> np.ndarray:
        """Returns a mask of sentences whose search continues, given the log p of their best unfinished sequence."""
        done_score = np.sort(self._done_score[self._sentence_A], axis=1)[:, -self._num_best]
        hope_A = best_A / self._beam.penalty(self._limit_S[self._sentence_A] + 1)
        now_A = best_A / self._beam.penalty(np.array(self._length + 2))
        is_open_A = (self._done_count_S[self._sentence_A] < self._beam.size) | (now_A > done_score)
        return is_open_A & (hope_A > done_score)

    def last_tokens(self) -> np.ndarray:
        """The last token of each row."""
        return self._token_AKT[:, :, self._length - 1].ravel()

    def found(self) -> Hypotheses:
        """The best that are finished."""
        order_SN = np.argsort(-self._done_score, axis=1, kind="stable")[:, : self._num_best]
        score, length = (np.take_along_axis(one, order_SN, axis=1) for one in (self._done_score, self._done_length))
        token = np.take_along_axis(self._done_token, order_SN[:, :, None], axis=1)
        return Hypotheses(token[:, :, : length.max(initial=0)], length, score)


def best_candidates(score_AK: np.ndarray, log_p_AKV: np.ndarray, count: int) -> Tuple[np.ndarray, np.ndarray]:
    """The `count` best sums of a sequence's score and log p of its next token: sums, float64, and indices into (K, V),
    both (A, count), best first, the lower index first of equal ones; -inf where there are fewer.

    The likeliest tokens are looked for in groups of tokens: the best N sums lie in the N groups with the best largest
    sum. Each score is looked at once, in a few microseconds for a thousand; `topk` would sort.
    """
    num, beams, vocab_size = log_p_AKV.shape
    size = max(math.isqrt(vocab_size // 2), 1)
    begin_G = np.arange(0, vocab_size, size)
    largest_AKG = np.maximum.reduceat(log_p_AKV, begin_G, axis=2)
    if np.isnan(largest_AKG).any():
        np.copyto(log_p_AKV, -np.inf, where=np.isnan(log_p_AKV))
        largest_AKG = np.maximum.reduceat(log_p_AKV, begin_G, axis=2)
    best_AN, group_AN = first_largest((score_AK[:, :, None] + largest_AKG).reshape(num, -1), count)
    # In the order of their tokens, so that of equal sums the lower index is found first.
    order_AN = np.argsort(group_AN, axis=1)
    best_AN, group_AN = (np.take_along_axis(one, order_AN, axis=1) for one in (best_AN, group_AN))
    beam_AN, begin_AN = group_AN // len(begin_G), group_AN % len(begin_G) * size
    token_ANM = begin_AN[:, :, None] + np.arange(size)
    counts_ANM = (token_ANM < vocab_size) & (best_AN > -np.inf)[:, :, None]
    index_AM = (beam_AN[:, :, None] * vocab_size + np.where(counts_ANM, token_ANM, 0)).reshape(num, -1)
    log_p_AM = np.take_along_axis(log_p_AKV.reshape(num, -1), index_AM, axis=1)
    sum_AM = np.take_along_axis(score_AK, np.repeat(beam_AN, size, axis=1), axis=1) + log_p_AM
    found_AN, place_AN = first_largest(np.where(counts_ANM.reshape(num, -1), sum_AM, -np.inf), count)
    missing = ((0, 0), (0, count - found_AN.shape[1]))
    found_AN = np.pad(found_AN, missing, constant_values=-np.inf)
    return found_AN, np.pad(np.take_along_axis(index_AM, place_AN, axis=1), missing)


def first_largest(value_AM: np.ndarray, count: int) -> Tuple[np.ndarray, np.ndarray]:
    """The `count` largest values of each row, or all, and their indices, largest first, the lower index first of equal
    ones. Where only -inf is left, an index may be one that was given before."""
    count = min(count, value_AM.shape[1])
    if count > MOST_ROUNDS:
        index_AN = np.argsort(-value_AM, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(value_AM, index_AN, axis=1), index_AN
    value_AM, row_A = value_AM.copy(), np.arange(len(value_AM))
    found_AN, index_AN = np.empty((len(row_A), count)), np.empty((len(row_A), count), np.int64)
    for number in range(count):
        index_A = value_AM.argmax(axis=1)  # the first of equal ones
        found_AN[:, number], index_AN[:, number] = value_AM[row_A, index_A], index_A
        value_AM[row_A, index_A] = -np.inf
    return found_AN, index_AN
