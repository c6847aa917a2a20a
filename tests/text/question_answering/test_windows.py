"""Windows of contexts: which tokens they hold, where answers are, and the best answer of scores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mxtrain.errors import DataError
from mxtrain.text.question_answering.answer_window import Window, WindowSettings
from mxtrain.text.question_answering.context_windows import CONTEXT, MATCH, QUESTION, window_starts
from mxtrain.text.question_answering.questions import Answer, Question, Questions
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.plain import Words
from mxtrain.text.tokenizing.wordpiece import SPECIAL, WordPiece
from mxtrain.text.windows import EncodedWindows

LETTERS = "abcdefghij"
CONFIG = TokenizerConfig(WordPiece((*SPECIAL, *LETTERS), True), 10)
SETTINGS = WindowSettings(3, 3, 2, True, False, 0.0)
CONTEXT_TEXT = " ".join(LETTERS)


def encoded(question: str, answer: str, config: TokenizerConfig = CONFIG) -> EncodedWindows:
    one = Question("q", question, 0, (Answer(answer, CONTEXT_TEXT.index(answer)),))
    return EncodedWindows(Questions([CONTEXT_TEXT], [one]), SETTINGS, config)


def test_every_token_is_in_a_window_and_no_window_is_needless() -> None:
    for count, room, stride in itertools.product(range(30), (5, 9), (2, 4, 20)):
        starts = window_starts(count, room, stride)
        held = {place for start in starts for place in range(start, start + room)}
        assert set(range(count)) <= held and starts[0] == 0
        assert len(starts) == 1 or starts[-2] + room < count


def test_windows_tokens_types_and_answers() -> None:
    found = encoded("b g", "e f")  # five tokens of the context fit beside two of the question and three special ones
    token_BT, type_BT, length_B = found.padded(np.arange(3), 10)
    shown = [[CONFIG.tokenizer.piece(token) for token in row] for row in token_BT.tolist()]
    assert ["".join(row[4:9]) for row in shown[:2]] == ["abcde", "defgh"] and shown[2][4:8] == list("ghij")
    assert shown[0][:4] == ["[CLS]", "b", "g", "[SEP]"] and shown[2][8:] == ["[SEP]", "[PAD]"]
    assert length_B.tolist() == [10, 10, 9]
    assert type_BT[0].tolist() == [QUESTION] * 4 + [CONTEXT, MATCH, CONTEXT, CONTEXT, CONTEXT, CONTEXT]
    # The first window holds only a part of the answer.
    assert found.span_N2.tolist() == [[0, 0], [5, 6], [0, 0]]
    window = found.windows[1]
    assert window.context[window.span_C2[1, 0] : window.span_C2[2, 1]] == "e f"


def test_a_tokenizer_needs_a_beginning() -> None:
    bare = TokenizerConfig(Words(("<pad>", "<unk>", "a"), False), 10)
    with pytest.raises(DataError, match="needs special tokens for the beginning"):
        encoded("b", "e", bare)


@pytest.mark.parametrize("most", [1, 2, 3, 50])
def test_best_answer_is_the_best_of_all_pairs(most: int) -> None:
    rng = np.random.RandomState(most)
    span_C2 = np.stack([np.arange(8) * 2, np.arange(8) * 2 + 1], axis=1)
    window = Window(0, Question("q", "", 0), CONTEXT_TEXT, span_C2, 3, SETTINGS._replace(max_answer=most))
    for _ in range(50):
        score_T2 = rng.randn(12, 2).astype(np.float32)
        score_T2[0] += 5  # neither the question nor padding is an answer
        score_T2[11] += 5
        pairs = [(first, last) for first in range(8) for last in range(first, min(8, first + most))]
        best = max(pairs, key=lambda pair: score_T2[3 + pair[0], 0] + score_T2[3 + pair[1], 1])
        score, null, begin, end = window.best(score_T2)
        assert (begin, end) == (2 * best[0], 2 * best[1] + 1)
        assert score == pytest.approx(float(score_T2[3 + best[0], 0]) + float(score_T2[3 + best[1], 1]))
        assert null == pytest.approx(float(score_T2[0].sum()))
