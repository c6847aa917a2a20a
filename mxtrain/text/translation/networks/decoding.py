"""Batched beam search for autoregressive networks. Exported folders contain a copy of this module.

The search for a sentence ends when K sequences are finished and no open sequence would be better if it ended now.
Ending after K finished sequences, as fairseq does, prefers unlikely short sequences. At the length limit, <eos> is
forced, and its probability counts, so every score is that of a complete sequence. With one beam, the search is greedy.

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

MAX_ROUNDS = 64
"""Up to this number, repeated argmax is faster than sorting."""


class StepDecoder(Protocol):
    """A network that decodes one token after the other, each row independently.

    Its state consists of arrays whose first axis is sentences or rows. Finished sentences leave the batch, so the
    network must accept any number of sentences.
    """

    def initial_state(self, *inputs: NDArray) -> Tuple[List[NDArray], List[NDArray]]:
        """Returns the state before the first token: (fixed, moving).

        `fixed` has one row per sentence, which its beams share, and does not change (encoded sources, their lengths).
        `moving` is replaced by each `step` (keys and values of previous tokens, recurrent states) and has one row per
        beam after the first step.
        """

    def step(
        self, token_R: NDArray, position: int, fixed: List[NDArray], moving: List[NDArray]
    ) -> Tuple[NDArray, List[NDArray]]:
        """Decodes one token.

        Args:
            token_R: last token of each row, int32; `Beam.bos` in the first step.
            position: position of the tokens, from 0.
            fixed: fixed state of A sentences. Each has R / A consecutive rows: 1 in the first step, then K.
            moving: moving state of each row.

        Returns:
            Log probabilities (R, V), float32, of the next token, and the new moving state.
        """


@dataclass(frozen=True)
class Beam:
    """Settings of beam search.

    Attributes:
        bos: first input token.
        eos: token that ends a sequence.
        size: number of beams K; 1 = greedy search.
        length_penalty: alpha: sequences are compared by log p / ((5 + tokens) / 6) ^ alpha, where <eos> counts as a
            token; 0 = by log p.
        never: tokens that are never chosen, such as <pad>.
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
        ratio: number of tokens per token (or frame) of the source.
        offset: number of tokens that is added.
        max_tokens: upper limit of tokens.
        max_positions: number of positions of the network, including that of `bos`; None = unlimited.
    """

    ratio: float
    offset: int
    max_tokens: int
    max_positions: Optional[int] = None

    def max_lengths(self, length_B: np.ndarray) -> np.ndarray:
        """Returns the largest number of tokens of each sequence, for sources of these lengths."""
        limit_B = np.floor(self.ratio * length_B.astype(np.float64)).astype(np.int64) + self.offset
        max_tokens = self.max_tokens if self.max_positions is None else min(self.max_tokens, self.max_positions - 1)
        return np.minimum(limit_B, max_tokens)


@dataclass(frozen=True)
class Hypotheses:
    """Best sequences of each sentence, best first. If fewer than N were found, the others are empty with score -inf.

    Attributes:
        token_SNT: tokens without <eos>, int32, padded with <eos>.
        length_SN: number of tokens without <eos>.
        score_SN: log p divided by the length penalty, float64.
    """

    token_SNT: np.ndarray
    length_SN: np.ndarray
    score_SN: np.ndarray


def beam_search(
    decoder: StepDecoder, inputs: Sequence[NDArray], limit_S: np.ndarray, beam: Beam, num_best: int = 1
) -> Hypotheses:
    """Searches for the most probable sequences of each sentence.

    Each step considers the best 2 * K continuations of a sentence. Those among the first K that end with <eos> are
    finished; the first K that do not end continue. At its length limit, every sequence must end.

    A sentence is done in two cases. First, K sequences are finished, and no open one would be among the `num_best` best
    if it ended now. Second, no open sequence can become better: its log p only falls, so its score is at most the
    current log p over the penalty of the longest sequence. (K finished sequences alone are not enough: if one sequence
    is by far the most probable, unlikely early endings of it are finished first.) Sentences that are done leave the
    batch.

    Ties are broken by the lower beam, then the lower token. Scores are summed in float64 on the host, so the
    composition of a batch influences the search only through the network's own rounding.

    Args:
        decoder: network.
        inputs: arguments of `initial_state`, on the network's device, S rows each.
        limit_S: largest number of tokens of each sentence, without <eos>.
        beam: settings of the search.
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
        for position in itertools.count():
            log_p, moving = decoder.step(token, position, fixed, moving)
            row_R, before = search.advance(log_p.asnumpy()), len(token)
            if not len(row_R):
                return search.found()
            # Copying to the device waits for all pending operations, so the copy must precede the calls of `take`.
            token = nd.array(search.last_tokens(), ctx=device, dtype="int32")
            if len(row_R) != before or (row_R != np.arange(before)).any():
                row = nd.array(row_R, ctx=device, dtype="int32")
                moving = [nd.take(array, row) for array in moving]
            if len(row_R) != num_sentences * beam.size:
                # Fixed arrays have one row per sentence, shared by its beams: they are copied only if one ends.
                active_A = row_R[:: beam.size] // (before // num_sentences)
                num_sentences = len(active_A)
                sentence = nd.array(active_A, ctx=device, dtype="int32")
                fixed = [nd.take(array, sentence) for array in fixed]
    raise AssertionError("counting does not end")


class BeamSteps:
    """State of the search for all sequences of a batch.

    Args:
        limit_S, beam, num_best: see `beam_search`.
    """

    def __init__(self, limit_S: np.ndarray, beam: Beam, num_best: int) -> None:
        self._beam, self._num_best = beam, num_best
        self._limit_S = np.asarray(limit_S, np.int64)
        num, max_tokens = len(self._limit_S), int(self._limit_S.max(initial=0))
        assert self._limit_S.min(initial=0) >= 0
        # At most K sequences are finished before a step, which may finish K more.
        slots = 2 * beam.size
        self._done_token = np.full((num, slots, max_tokens), beam.eos, np.int32)
        self._done_length = np.zeros((num, slots), np.int64)
        self._done_score = np.full((num, slots), -np.inf)
        self._done_count_S = np.zeros(num, np.int64)
        # Active sentences. Before the first step each has a single row.
        self._sentence_A = np.arange(num)
        self._score_AK = np.zeros((num, 1))
        self._token_AKT = np.full((num, 1, max_tokens), beam.eos, np.int32)
        self._length = 0

    def advance(self, log_p_RV: np.ndarray) -> np.ndarray:
        """Processes the log probabilities of a step, which it overwrites; returns the previous row of each new row."""
        (num, beams), width = self._score_AK.shape, self._beam.size
        log_p_AKV = log_p_RV.reshape(num, beams, -1)
        self._forbid(log_p_AKV)
        score_AN, index_AN = best_candidates(self._score_AK, log_p_AKV, 2 * width)
        parent_AN, token_AN = np.divmod(index_AN, log_p_AKV.shape[2])
        ends_AN = token_AN == self._beam.eos
        # Ends count only among the first K, as in fairseq: with all 2 * K a single beam would go on past its own <eos>.
        self._finish(score_AN[:, :width], parent_AN[:, :width], ends_AN[:, :width])
        # Each beam has at most one continuation with <eos>, so at least K of the 2 * K candidates continue.
        chosen_AK = np.argsort(ends_AN, axis=1, kind="stable")[:, :width]
        score_AK, parent_AK, token_AK = (
            np.take_along_axis(array, chosen_AK, axis=1) for array in (score_AN, parent_AN, token_AN)
        )
        score_AK[np.take_along_axis(ends_AN, chosen_AK, axis=1)] = -np.inf
        active_A = np.flatnonzero(self._is_active(score_AK[:, 0]))
        self._token_AKT = self._token_AKT[active_A[:, None], parent_AK[active_A]]
        if self._length < self._token_AKT.shape[2]:
            self._token_AKT[:, :, self._length] = token_AK[active_A]
        self._score_AK, self._sentence_A = score_AK[active_A], self._sentence_A[active_A]
        self._length += 1
        return (active_A[:, None] * beams + parent_AK[active_A]).ravel()

    def _forbid(self, log_p_AKV: np.ndarray) -> None:
        """Sets the log probability of forbidden tokens to -inf; at a sentence's limit, of all tokens but <eos>."""
        log_p_AKV[:, :, list(self._beam.never)] = -np.inf
        at_limit_A = self._limit_S[self._sentence_A] <= self._length
        if at_limit_A.any():
            # <eos> is forced with its own probability, so every score is that of a whole sequence.
            end = log_p_AKV[at_limit_A, :, self._beam.eos]
            log_p_AKV[at_limit_A] = -np.inf
            log_p_AKV[at_limit_A, :, self._beam.eos] = end

    def _finish(self, score_AK: np.ndarray, parent_AK: np.ndarray, ends_AK: np.ndarray) -> None:
        """Stores the candidates that end with <eos>."""
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
        """Keeps only the best K finished sequences of the sentences `full_F`, which have more."""
        if not len(full_F):
            return
        order_FN = np.argsort(-self._done_score[full_F], axis=1, kind="stable")
        for array in (self._done_score, self._done_length):
            array[full_F] = np.take_along_axis(array[full_F], order_FN, axis=1)
        self._done_token[full_F] = np.take_along_axis(self._done_token[full_F], order_FN[:, :, None], axis=1)
        self._done_score[full_F, self._beam.size :] = -np.inf
        self._done_count_S[full_F] = self._beam.size

    def _is_active(self, best_A: np.ndarray) -> np.ndarray:
        """Returns a mask of the sentences whose search continues.

        Args:
            best_A: log p of the best unfinished sequence of each sentence.
        """
        done_score = np.sort(self._done_score[self._sentence_A], axis=1)[:, -self._num_best]
        # An upper bound on future scores. With a small length penalty, it alone would end no search before the limit.
        bound_A = best_A / self._beam.penalty(self._limit_S[self._sentence_A] + 1)
        score_if_ended_A = best_A / self._beam.penalty(np.array(self._length + 2))
        # K finished sequences alone must not end the search: GNMT with four beams then translated 97.8 % of the phrases
        # correctly, and 99.8 % with this rule.
        is_open_A = (self._done_count_S[self._sentence_A] < self._beam.size) | (score_if_ended_A > done_score)
        return is_open_A & (bound_A > done_score)

    def last_tokens(self) -> np.ndarray:
        """Returns the last token of each row."""
        return self._token_AKT[:, :, self._length - 1].ravel()

    def certain_tokens(self) -> List[int]:
        """Returns the tokens with which the best sequence of a single sentence begins, whatever follows.

        With one beam there is one open sequence, and finished ones are beginnings of it: once one is finished, the best
        one is that or a longer one. With several beams nothing is certain before the end.
        """
        if self._beam.size > 1 or not len(self._sentence_A):
            return []
        sentence = self._sentence_A[0]
        # After a first end the search may prefer a longer sequence, so what goes on is not certain any more.
        is_open = not self._done_count_S[sentence]
        length = self._length if is_open else int(self._done_length[sentence, 0])
        return [int(token) for token in self._token_AKT[0, 0, :length]]

    def found(self) -> Hypotheses:
        """Returns the best finished sequences."""
        order_SN = np.argsort(-self._done_score, axis=1, kind="stable")[:, : self._num_best]
        score, length = (np.take_along_axis(array, order_SN, axis=1) for array in (self._done_score, self._done_length))
        token = np.take_along_axis(self._done_token, order_SN[:, :, None], axis=1)
        return Hypotheses(token[:, :, : length.max(initial=0)], length, score)


def best_candidates(score_AK: np.ndarray, log_p_AKV: np.ndarray, count: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the `count` best continuations of each sentence.

    Tokens are searched in groups: the best N sums lie in the N groups with the largest maxima. So each score is read
    only once, in a few microseconds per thousand; `topk` would sort them.

    Args:
        score_AK: log p of each beam.
        log_p_AKV: log probability of each next token. NaN counts as -inf and is overwritten.
        count: N.

    Returns:
        Sums of both, float64, and indices into (K, V), (A, count) each: best first, ties by the lower index; -inf if
        there are fewer.
    """
    num, beams, vocab_size = log_p_AKV.shape
    # The N best sums lie in the N groups with the largest sums. For 64 x 8,000 this takes 0.5 ms, argpartition
    # 3.9 ms and MXNet's topk 2.9 ms.
    size = max(math.isqrt(vocab_size // 2), 1)
    begin_G = np.arange(0, vocab_size, size)
    largest_AKG = np.maximum.reduceat(log_p_AKV, begin_G, axis=2)
    # np.maximum propagates NaN, which would win each group; as -inf it is never chosen.
    if np.isnan(largest_AKG).any():
        np.copyto(log_p_AKV, -np.inf, where=np.isnan(log_p_AKV))
        largest_AKG = np.maximum.reduceat(log_p_AKV, begin_G, axis=2)
    best_AN, group_AN = first_largest((score_AK[:, :, None] + largest_AKG).reshape(num, -1), count)
    # Sort the groups by token, so that ties are found in the order of the index.
    order_AN = np.argsort(group_AN, axis=1)
    best_AN, group_AN = (np.take_along_axis(array, order_AN, axis=1) for array in (best_AN, group_AN))
    beam_AN, begin_AN = group_AN // len(begin_G), group_AN % len(begin_G) * size
    token_ANM = begin_AN[:, :, None] + np.arange(size)
    counts_ANM = (token_ANM < vocab_size) & (best_AN > -np.inf)[:, :, None]
    index_AM = (beam_AN[:, :, None] * vocab_size + np.where(counts_ANM, token_ANM, 0)).reshape(num, -1)
    log_p_AM = np.take_along_axis(log_p_AKV.reshape(num, -1), index_AM, axis=1)
    sum_AM = np.take_along_axis(score_AK, np.repeat(beam_AN, size, axis=1), axis=1) + log_p_AM
    sum_AN, position_AN = first_largest(np.where(counts_ANM.reshape(num, -1), sum_AM, -np.inf), count)
    padding = ((0, 0), (0, count - sum_AN.shape[1]))
    sum_AN = np.pad(sum_AN, padding, constant_values=-np.inf)
    return sum_AN, np.pad(np.take_along_axis(index_AM, position_AN, axis=1), padding)


def first_largest(value_AM: np.ndarray, count: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the `count` largest values of each row and their indices, largest first, ties by the lower index.

    Among values of -inf, an index may be repeated.
    """
    count = min(count, value_AM.shape[1])
    if count > MAX_ROUNDS:
        index_AN = np.argsort(-value_AM, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(value_AM, index_AN, axis=1), index_AN
    value_AM, row_A = value_AM.copy(), np.arange(len(value_AM))
    largest_AN, index_AN = np.empty((len(row_A), count)), np.empty((len(row_A), count), np.int64)
    for number in range(count):
        index_A = value_AM.argmax(axis=1)  # the first of equal ones
        largest_AN[:, number], index_AN[:, number] = value_AM[row_A, index_A], index_A
        value_AM[row_A, index_A] = -np.inf
    return largest_AN, index_AN
