"""Prefix beam search against sums over all alignments, alone and with n-grams."""

from __future__ import annotations

import itertools
from typing import Dict, List, Optional, Tuple

import numpy as np
import pytest

from mxtrain.errors import DataError
from mxtrain.speech.prefix_beam import best_of_batch, prefix_beam_search
from mxtrain.speech.speech_model import NEVER, ArpaScorer, CharacterScorer, read_arpa
from mxtrain.task.ngrams import KneserNey

LN10 = np.log(10)
ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-99\t<s>\t-0.5
-1.5\t</s>
-0.6\tab\t-0.2
-0.9\tb\t-0.3
-2.0\t<unk>

\\2-grams:
-0.1\t<s> ab
-0.3\tab b
-0.2\tb </s>

\\end\\
"""


def log_p(seed: int, steps: int, classes: int) -> np.ndarray:
    score = np.random.RandomState(seed).randn(steps, classes) * 1.5
    return score - np.log(np.exp(score).sum(axis=1, keepdims=True))


def summed(log_p_TK: np.ndarray) -> Dict[Tuple[int, ...], float]:
    """log p of each text, over all of its alignments."""
    blank, found = log_p_TK.shape[1] - 1, {}
    for path in itertools.product(range(blank + 1), repeat=len(log_p_TK)):
        text = tuple(one for one, _ in itertools.groupby(path) if one != blank)
        one = sum(log_p_TK[step, state] for step, state in enumerate(path))
        found[text] = np.logaddexp(found.get(text, -np.inf), one)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_with_all_prefixes_kept_probabilities_are_exact(seed: int) -> None:
    given = log_p(seed, 6, 4)
    texts = summed(given)
    found = prefix_beam_search(given, 100_000, num_best=100_000)
    assert {tuple(one.characters): one.score for one in found} == pytest.approx(texts, abs=1e-9)
    assert [one.score for one in found] == pytest.approx(sorted(texts.values(), reverse=True))
    best = max(texts, key=texts.__getitem__)
    assert tuple(prefix_beam_search(given, 8)[0].characters) == best


def one_by_one(log_p_TK: np.ndarray, width: int, scorer: Optional[CharacterScorer]) -> Tuple[Tuple[int, ...], float]:
    """Algorithm 1 of Hannun et al., a prefix at a time: the best text and its score."""
    blank = log_p_TK.shape[1] - 1
    kept: Dict[Tuple[int, ...], Tuple[float, float]] = {(): (0.0, -np.inf)}

    def added(text: Tuple[int, ...]) -> float:
        state, total = (scorer.initial_state(), 0.0) if scorer is not None else (None, 0.0)
        for one in text if scorer is not None else ():
            total += scorer.scores(state)[one]  # type: ignore[union-attr]  # it is there
            state = scorer.follow(state, one)  # type: ignore[union-attr, arg-type]
        return total

    for log_p_K in log_p_TK:
        found: Dict[Tuple[int, ...], List[float]] = {}
        for text, (in_blank, in_other) in kept.items():
            whole = np.logaddexp(in_blank, in_other)
            ways = [(text, 0, whole + log_p_K[blank])]
            for one in range(blank):
                is_again = text[-1:] == (one,)
                ways.append(((*text, one), 1, (in_blank if is_again else whole) + log_p_K[one]))
                if is_again:
                    ways.append((text, 1, in_other + log_p_K[one]))
            for longer, end, value in ways:
                pair = found.setdefault(longer, [-np.inf, -np.inf])
                pair[end] = np.logaddexp(pair[end], value)
        best = sorted(found, key=lambda text: -np.logaddexp(*found[text]) - added(text))[:width]
        kept = {text: (found[text][0], found[text][1]) for text in best}
    ends = {}
    for text, pair in kept.items():
        state = None if scorer is None else scorer.initial_state()
        for one in text if scorer is not None else ():
            state = scorer.follow(state, one)  # type: ignore[union-attr, arg-type]
        ends[text] = np.logaddexp(*pair) + added(text) + (0.0 if scorer is None else scorer.end(state))  # type: ignore[arg-type]
    best_text = max(ends, key=ends.__getitem__)
    return best_text, float(ends[best_text])


@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize("has_model", [False, True])
def test_narrow_beams_equal_the_plain_algorithm(width: int, has_model: bool) -> None:
    labels = [np.array([0, 1, 2, 0])] * 5 + [np.array([2, 2, 1])] * 3
    scorer = CharacterScorer(labels, 3, 3, 1.5, 0.3) if has_model else None
    for seed in range(12):
        given = log_p(seed, 9, 4)
        (found,) = prefix_beam_search(given, width, scorer)
        text, score = one_by_one(given, width, scorer)
        assert tuple(found.characters) == text and found.score == pytest.approx(score, abs=1e-9)


def test_a_sum_over_alignments_can_beat_the_likeliest_alignment() -> None:
    given = np.log([[0.4, 1e-9, 0.6], [0.4, 1e-9, 0.6]])  # blank blank has 0.36, and the three ways of "a" 0.64
    (found,) = prefix_beam_search(given, 4)
    assert found.characters == [0] and found.score == pytest.approx(np.log(0.64), abs=1e-6)


def test_scores_beyond_the_length_are_ignored() -> None:
    given = np.stack([log_p(0, 6, 4), log_p(1, 6, 4)])
    found = best_of_batch(given, [6, 3], 50, None)
    for row, count in enumerate([6, 3]):
        texts = summed(given[row, :count])
        best = max(texts, key=texts.__getitem__)
        assert found[row].tolist() == [*best, *[-1] * (6 - len(best))]


def test_an_arpa_file_backs_off(tmp_path) -> None:
    (tmp_path / "a.arpa").write_text(ARPA)
    model = read_arpa(str(tmp_path / "a.arpa"))
    assert model.order == 2 and not model.is_of_characters
    assert model.log_p(("<s>",), "ab") == pytest.approx(-0.1 * LN10)
    assert model.log_p(("<s>",), "b") == pytest.approx((-0.5 - 0.9) * LN10)
    assert model.log_p(("x", "b"), "ab") == pytest.approx((-0.3 - 0.6) * LN10)
    assert model.log_p(("ab",), "nothing") == pytest.approx((-0.2 - 2.0) * LN10)
    (tmp_path / "b.arpa").write_text(ARPA.replace("-2.0\t<unk>\n", ""))
    assert read_arpa(str(tmp_path / "b.arpa")).log_p((), "nothing") == NEVER


@pytest.mark.parametrize(
    "wrong, said",
    [
        (ARPA.replace("-0.9\tb\t-0.3", "x\tb\t-0.3"), "line 9 is no 1-gram"),
        (ARPA.replace("-0.3\tab b", "-0.3\tab"), "line 14 is no 2-gram"),
        (ARPA.replace("\\end\\", ""), "is no ARPA file"),
        ("hello\n", "is no ARPA file"),
    ],
)
def test_files_that_are_not_arpa_are_refused(tmp_path, wrong: str, said: str) -> None:
    (tmp_path / "a.arpa").write_text(wrong)
    with pytest.raises(DataError, match=said):
        read_arpa(str(tmp_path / "a.arpa"))


def words_score(model, text: str, weight: float, bonus: float) -> float:
    """Returns the score of a language model of words for a text."""
    context: List[str] = ["<s>"]
    total = 0.0
    for word in text.split():
        total += weight * model.log_p(tuple(context), word) + bonus
        context.append(word)
    return total + weight * model.log_p(tuple(context), "</s>")


def test_words_are_scored_at_their_end(tmp_path) -> None:
    (tmp_path / "a.arpa").write_text(ARPA)
    model = read_arpa(str(tmp_path / "a.arpa"))
    given, characters = log_p(5, 6, 4), "ab "
    texts = summed(given)
    scorer = ArpaScorer(model, characters, 0.7, 0.2)
    found = prefix_beam_search(given, 100_000, scorer, 100_000)
    for one in found:
        text = "".join(characters[number] for number in one.characters)
        assert one.score == pytest.approx(texts[tuple(one.characters)] + words_score(model, text, 0.7, 0.2), abs=1e-9)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_characters_of_a_file_are_scored_one_by_one(tmp_path) -> None:
    (tmp_path / "a.arpa").write_text(ARPA.replace("ab", "a").replace("-2.0\t<unk>", "-1.0\t<space>\t-0.4"))
    model = read_arpa(str(tmp_path / "a.arpa"))
    assert model.is_of_characters
    scorer = ArpaScorer(model, "ab ", 1.0, 0.0)
    state = scorer.follow(scorer.initial_state(), 0)
    np.testing.assert_allclose(scorer.scores(scorer.initial_state())[0], -0.1 * LN10)
    np.testing.assert_allclose(scorer.scores(state), np.array([-0.8, -0.3, -1.2]) * LN10)
    assert scorer.end(scorer.follow(state, 1)) == pytest.approx(-0.2 * LN10)


def test_next_probabilities_match_the_last_token() -> None:
    token_N = np.random.RandomState(0).randint(0, 5, 400)
    model = KneserNey(token_N, 4, 6)
    for context in ([], [1], [2, 3], [1, 2, 3], [0, 1, 2, 3, 4], [5, 1], [5]):
        found = model.next_probabilities(context)
        assert found.sum() == pytest.approx(1)
        if context:
            wanted = [np.exp(model.log_probabilities(np.array([*context, token]))[-1]) for token in range(6)]
            np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_training_transcripts_raise_scores_of_their_sequences() -> None:
    labels = [np.array([0, 1, 2])] * 20 + [np.array([2, 1])]
    scorer = CharacterScorer(labels, 3, 3, 1.0, 0.0)
    flat = np.log(np.full((5, 4), 0.25))
    best, *_ = prefix_beam_search(flat, 50, scorer)
    assert best.characters == [0, 1, 2]
    assert scorer.end(scorer.initial_state()) < scorer.end((1, 2))
