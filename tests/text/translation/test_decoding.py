"""Beam search against all sequences there are, against a slow one in plain Python, and whoever shares a batch."""

from __future__ import annotations

import itertools
from typing import Any, List, NamedTuple, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.text.translation.networks.decoding import Beam, Hypotheses, beam_search, best_candidates, first_largest

BOS, EOS = 1, 2
PRIME = 211


class TableDecoder:
    """Random probabilities that depend on the sentence and on all tokens before, which only `moving` knows: so a row
    that is taken wrongly changes what is found.

    Args:
        vocab_size: V.
        seed: of the probabilities.
        rounded: to multiples of it, so that many are equal; 0 = not.
    """

    def __init__(self, vocab_size: int, seed: int, rounded: float = 0.0) -> None:
        score = np.random.RandomState(seed).normal(0, 1.5, (PRIME, vocab_size))
        table = score - np.log(np.exp(score).sum(axis=1, keepdims=True))
        self.table = (np.round(table / rounded) * rounded if rounded else table).astype(np.float32)
        self.rows: List[int] = []

    def initial_state(self, *inputs: Any) -> Tuple[List[Any], List[Any]]:
        (sentence_S,) = inputs
        return [sentence_S.reshape((-1, 1))], [nd.zeros((len(sentence_S), 2, 1), dtype="int32")]

    def step(self, token_R: Any, place: int, fixed: List[Any], moving: List[Any]) -> Tuple[Any, List[Any]]:
        assert token_R.dtype == np.int32 and len(moving[0]) == len(token_R)
        sentence_R = np.repeat(fixed[0].asnumpy()[:, 0], len(token_R) // len(fixed[0]))
        self.rows.append(len(token_R))
        before_R = moving[0].asnumpy()[:, 0, 0]
        state_R = self.state(before_R, token_R.asnumpy())
        log_p = self.table[self.row(state_R, sentence_R)]
        return nd.array(log_p, dtype="float32"), [nd.array(np.stack([state_R] * 2, 1)[:, :, None], dtype="int32")]

    @staticmethod
    def state(before: Any, token: Any) -> Any:
        return (before * 31 + token * 7 + 5) % PRIME

    @staticmethod
    def row(state: Any, sentence: Any) -> Any:
        return (state + 17 * sentence) % PRIME

    def log_p(self, sentence: int, tokens: Tuple[int, ...]) -> np.ndarray:
        """Returns log-probabilities of the next token, in float64."""
        state = 0
        for token in (BOS, *tokens):
            state = self.state(state, token)
        return self.table[self.row(state, sentence)].astype(np.float64)


class Found(NamedTuple):
    tokens: Tuple[int, ...]
    score: float


def search(decoder: TableDecoder, sentences: List[int], limits: List[int], beam: Beam, num_best: int = 1) -> Hypotheses:
    return beam_search(decoder, [nd.array(sentences, dtype="int32")], np.array(limits), beam, num_best)


def of_sentences(found: Hypotheses) -> List[List[Found]]:
    return [
        [Found(tuple(token_T[:length].tolist()), float(score)) for token_T, length, score in zip(*sentence)]
        for sentence in zip(found.token_SNT, found.length_SN, found.score_SN)
    ]


def penalty(alpha: float, length: int) -> float:
    return float(((5 + length) / 6) ** alpha)


def in_plain_python(decoder: TableDecoder, sentence: int, limit: int, beam: Beam, num_best: int) -> List[Found]:
    """One sentence, as the rules are written down."""
    live, done = [((), 0.0)], []
    for length in itertools.count():
        every = []
        for number, (tokens, score) in enumerate(live):
            for token, log_p in enumerate(decoder.log_p(sentence, tokens)):
                if token not in beam.never and (length < limit or token == EOS):
                    every.append((-(score + float(log_p)), number, token, tokens))
        every = sorted(every)[: 2 * beam.size]
        for minus, _, token, tokens in every[: beam.size]:
            if token == EOS:
                done.append(Found(tokens, -minus / penalty(beam.length_penalty, length + 1)))
        live = [((*tokens, token), -minus) for minus, _, token, tokens in every if token != EOS][: beam.size]
        best = sorted(done, key=lambda one: -one.score)[:num_best]
        enough = len(best) == num_best and (
            not live or live[0][1] / penalty(beam.length_penalty, limit + 1) <= best[-1].score
        )
        stays = (
            len(done) >= beam.size
            and live
            and (live[0][1] / penalty(beam.length_penalty, length + 2) <= best[-1].score)
        )
        if not live or enough or stays:
            return best
    raise AssertionError


def test_unlikely_early_ends_do_not_replace_the_best_sequence() -> None:
    """One sequence has 0.9 at each token, all others and each early end a hundredth."""
    tokens, vocab_size = (3, 4, 5, 6, 7, 8, EOS), 12

    class Sure(TableDecoder):
        def step(self, token_R: Any, place: int, fixed: List[Any], moving: List[Any]) -> Tuple[Any, List[Any]]:
            log_p = np.full((len(token_R), vocab_size), np.log(0.1 / (vocab_size - 1)), np.float32)
            log_p[:, tokens[min(place, len(tokens) - 1)]] = np.log(0.9)
            return nd.array(log_p), moving

    for size in (1, 2, 4, 8):
        (found,) = of_sentences(search(Sure(vocab_size, 0), [0], [20], Beam(BOS, EOS, size, 0.6)))
        assert found[0].tokens == tokens[:-1]


def check_compatible(found: List[Found], expected: List[Found]) -> None:
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_wide_beam_finds_the_best_of_all_sequences(alpha: float, seed: int) -> None:
    decoder, limit, num_best = TableDecoder(4, seed), 3, 7
    beam = Beam(BOS, EOS, 4**limit, alpha)
    for sentence, found in enumerate(of_sentences(search(decoder, [0, 1, 2], [limit] * 3, beam, num_best))):
        every = []
        for length in range(limit + 1):
            for tokens in itertools.product((0, 1, 3), repeat=length):
                of_tokens = [decoder.log_p(sentence, tokens[:place])[token] for place, token in enumerate(tokens)]
                log_p = sum(of_tokens, 0.0) + decoder.log_p(sentence, tokens)[EOS]
                every.append(Found(tokens, float(log_p) / penalty(alpha, length + 1)))
        check_compatible(found, sorted(every, key=lambda one: -one.score)[:num_best])


@pytest.mark.parametrize("rounded", [0.0, 0.5], ids=["distinct", "equal"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("size, num_best", [(1, 1), (2, 1), (4, 4), (7, 3)])
def test_the_same_as_in_plain_python(size: int, num_best: int, alpha: float, rounded: float) -> None:
    for seed, vocab_size in enumerate((3, 5, 40, 257)):
        decoder = TableDecoder(vocab_size, seed, rounded)
        limits = [9, 0, 5, 12, 1, 12, 7]
        beam = Beam(BOS, EOS, size, alpha, never=(0, BOS))
        found = of_sentences(search(decoder, list(range(7)), limits, beam, num_best))
        for sentence, limit in enumerate(limits):
            expected = in_plain_python(decoder, sentence, limit, beam, num_best)
            check_compatible(found[sentence][: len(expected)], expected)
            assert all(one == Found((), -np.inf) for one in found[sentence][len(expected) :])
            assert all(len(one.tokens) <= limit and not {0, BOS, EOS} & {*one.tokens} for one in found[sentence])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4])
def test_translation_does_not_depend_on_the_batch(size: int) -> None:
    decoder, beam = TableDecoder(50, 3), Beam(BOS, EOS, size)
    limits = np.random.RandomState(1).randint(1, 13, 64).tolist()
    together = search(decoder, list(range(64)), limits, beam)
    for batch_size in (1, 8):
        apart = [
            one
            for begin in range(0, 64, batch_size)
            for one in of_sentences(
                search(decoder, list(range(64))[begin : begin + batch_size], limits[begin : begin + batch_size], beam)
            )
        ]
        assert apart == of_sentences(together)  # scores to the bit


@pytest.mark.parametrize("size", [2, 4])
def test_a_sentence_that_ends_at_once_frees_its_source(size: int) -> None:
    """`size` sentences of one row each, of which one goes on in `size` rows: as many rows as before."""
    decoder, beam = TableDecoder(50, 3), Beam(BOS, EOS, size, never=(0, BOS))
    limits = [0] * (size - 1) + [8]
    found = of_sentences(search(decoder, list(range(size)), limits, beam))
    check_compatible(found[-1], in_plain_python(decoder, size - 1, 8, beam, 1))


def test_one_beam_takes_the_likeliest_token() -> None:
    decoder = TableDecoder(30, 5)
    (found,) = of_sentences(search(decoder, [4], [20], Beam(BOS, EOS, 1, 1.0)))[0]
    tokens: Tuple[int, ...] = ()
    while len(tokens) < 20 and (token := int(decoder.log_p(4, tokens).argmax())) != EOS:
        tokens = (*tokens, token)
    assert found.tokens == tokens


def test_finished_sentences_leave_the_batch() -> None:
    decoder = TableDecoder(20, 2)
    search(decoder, [0, 1, 2], [1, 3, 6], Beam(BOS, EOS, 2))
    rows = decoder.rows
    assert rows[0] == 3 and max(rows) <= 6 and len(rows) <= 7
    assert all(before >= after for before, after in zip(rows[1:], rows[2:])) and rows[-1] < 6
    assert rows[2:] and max(rows[2:]) <= 4  # the first one has at most two steps


def test_a_sentence_is_done_when_no_other_can_become_better() -> None:
    decoder = TableDecoder(20, 2)
    decoder.table[:] = -4.0
    decoder.table[:, EOS] = -0.1
    search(decoder, [0], [50], Beam(BOS, EOS, 4, 0.6))
    # <eos> alone has -0.1; what goes on has -4 after one token and could have -4 / (56 / 6) ^ 0.6 = -1.05 at its end.
    assert len(decoder.rows) == 1
    decoder.rows.clear()
    search(decoder, [0], [50], Beam(BOS, EOS, 4, 2.0))  # -4 / (56 / 6) ^ 2 = -0.05: worth searching
    assert len(decoder.rows) > 1


def test_empty_batch_is_not_searched() -> None:
    found = beam_search(TableDecoder(5, 0), [], np.zeros(0, np.int64), Beam(BOS, EOS, 3), 2)
    assert found.token_SNT.shape == (0, 2, 0) and found.score_SN.shape == (0, 2)


def test_search_ends_for_nan_scores() -> None:
    decoder = TableDecoder(5, 0)
    decoder.table[:] = np.nan
    assert of_sentences(search(decoder, [0, 1], [30, 30], Beam(BOS, EOS, 3))) == [[Found((), -np.inf)]] * 2


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("count", [1, 5, 70])
def test_candidates_match_a_stable_sort(vocab_size: int, count: int) -> None:
    rng = np.random.RandomState(vocab_size + count)
    log_p = np.round(rng.normal(0, 2, (6, 3, vocab_size)) * 2).astype(np.float32) / 2
    log_p[rng.rand(*log_p.shape) < 0.2] = -np.inf
    score = np.round(rng.normal(0, 1, (6, 3)) * 2) / 2
    score[1, 1] = -np.inf
    found, index = best_candidates(score, log_p.copy(), count)
    every = (score[:, :, None] + log_p).reshape(6, -1)
    expected = np.argsort(-every, axis=1, kind="stable")[:, :count]
    sums = np.take_along_axis(every, expected, axis=1)
    width = expected.shape[1]
    np.testing.assert_array_equal(found[:, :width], sums)
    np.testing.assert_array_equal(index[:, :width][sums > -np.inf], expected[sums > -np.inf])
    assert (found[:, width:] == -np.inf).all() and (0 <= index).all() and (index < every.shape[1]).all()


def test_indices_of_large_vocabularies_are_exact() -> None:
    """A float32 cannot tell indices beyond 2^24 apart."""
    log_p = np.full((1, 3, 6_000_001), -50.0, np.float32)
    log_p[0, 2, [5_999_998, 6_000_000]] = -1.0, -2.0
    _, index = best_candidates(np.zeros((1, 3)), log_p, 2)
    assert index.tolist() == [[18_000_000, 18_000_002]]


def test_both_ways_to_the_largest_agree() -> None:
    value = np.random.RandomState(0).randint(0, 9, (5, 200)).astype(np.float64)
    sorted_, index = first_largest(value, 65)
    rounds, first = first_largest(value, 64)
    np.testing.assert_array_equal(sorted_[:, :64], rounds)
    np.testing.assert_array_equal(index[:, :64], first)
