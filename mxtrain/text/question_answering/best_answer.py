"""The best answer to each question over the windows of its context. Exported folders have a copy of this module.

Legend: N windows, M questions, T tokens of a sample, W columns of a row.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Sequence, Tuple

import numpy as np

from mxtrain.text.question_answering.answer_scores import score_answer
from mxtrain.text.question_answering.answer_window import NOWHERE, BestSpan, Window

(QUESTION, SCORE, EXACT, F1, NULL_SCORE, NULL_EXACT, NULL_F1, THRESHOLD, BEGIN, END) = range(10)
"""Columns of the row of a window: number of the question; score, exact match and F1 of the best answer; the same of no
answer; threshold of no answer; first character and end of the best answer in the context."""


class QuestionScores(NamedTuple):
    """Scores of each question.

    Attributes:
        number_M: index of each question in its split.
        exact_M, f1_M: exact match and F1 of the predicted answer.
        window_M: row of `CollectedAnswers.samples` with the best answer.
        is_null_M: True if no answer was predicted.
    """

    number_M: np.ndarray
    exact_M: np.ndarray
    f1_M: np.ndarray
    window_M: np.ndarray
    is_null_M: np.ndarray


def row_of(window: Window, score_T2: np.ndarray) -> Tuple[float, ...]:
    """Returns the row of `CollectedAnswers` for a window with scores (T, 2)."""
    settings, golds = window.settings, [answer.text for answer in window.question.answers]
    best = window.best(score_T2)
    answer_scores = score_answer(window.context[best.begin : best.end], golds, settings.may_be_null)
    return _row(window, best, answer_scores, score_answer("", golds, settings.may_be_null))


UNSCORED = (0.0, 0.0)
"""Exact match and F1 of an answer that is compared with none."""


def _row(
    window: Window,
    best: BestSpan,
    answer_scores: Tuple[float, float] = UNSCORED,
    null_scores: Tuple[float, float] = UNSCORED,
) -> Tuple[float, ...]:
    threshold = window.settings.null_threshold if window.settings.may_be_null else np.inf
    scores = (best.score, *answer_scores, best.score_of_none, *null_scores)
    return (window.number, *scores, threshold, best.begin, best.end)


def best_of_questions(row_NW: np.ndarray) -> QuestionScores:
    """See `CollectedAnswers.questions`."""
    if not len(row_NW):
        empty = np.zeros(0)
        return QuestionScores(empty, empty, empty, empty.astype(np.int64), empty.astype(bool))
    order_N = np.lexsort((-row_NW[:, SCORE], row_NW[:, QUESTION]))  # stable: of equal scores the first window
    begin_M = np.flatnonzero(np.diff(row_NW[order_N, QUESTION], prepend=-1))
    window_M = order_N[begin_M]
    best_MW = row_NW[window_M]
    # The least over the windows: a question has no answer only if no window holds one.
    null_M = np.minimum.reduceat(row_NW[order_N, NULL_SCORE], begin_M)
    is_null_M = null_M - best_MW[:, SCORE] > best_MW[:, THRESHOLD]
    exact_M = np.where(is_null_M, best_MW[:, NULL_EXACT], best_MW[:, EXACT])
    f1_M = np.where(is_null_M, best_MW[:, NULL_F1], best_MW[:, F1])
    return QuestionScores(best_MW[:, QUESTION].astype(np.int64), exact_M, f1_M, window_M, is_null_M)


def answer_of(windows: Sequence[Tuple[Window, np.ndarray]]) -> Dict[str, Any]:
    """Returns the best answer over the windows of a question; its score is None if the context has no tokens."""
    row_NW = np.array([_row(window, window.best(score_T2)) for window, score_T2 in windows])
    best = best_of_questions(row_NW)
    row = row_NW[best.window_M[0]]
    window = windows[int(best.window_M[0])][0]
    begin, end = int(row[BEGIN]), int(row[END])
    is_null = bool(best.is_null_M[0]) or begin == end
    return {
        "id": window.question.id,
        "question": window.question.text,
        "answer": "" if is_null else window.context[begin:end],
        "begin": None if is_null else begin,
        "score": None if row[SCORE] == NOWHERE else round(float(row[SCORE]), 4),
        "score_of_none": round(float(row_NW[:, NULL_SCORE].min()), 4),
    }
