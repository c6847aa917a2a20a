"""The best answer to each question over the windows of its context. Exported folders have a copy of this module.

Legend: N windows, M questions, T tokens of a sample.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Sequence, Tuple

import numpy as np

from mxtrain.text.question_answering.answer_scores import score_answer
from mxtrain.text.question_answering.answer_window import NOWHERE, Window


class QuestionScores(NamedTuple):
    """Scores of each question.

    Attributes:
        number_M: of the questions in their split.
        exact_M, f1_M: of what was predicted.
        window_M: which row of `CollectedAnswers.samples` decided each.
        is_null_M: whether no answer was predicted.
    """

    number_M: np.ndarray
    exact_M: np.ndarray
    f1_M: np.ndarray
    window_M: np.ndarray
    is_null_M: np.ndarray


def row_of(window: Window, score_T2: np.ndarray) -> Tuple[float, ...]:
    """A row of `CollectedAnswers`."""
    settings, golds = window.settings, [answer.text for answer in window.question.answers]
    score, null, begin, end = window.best(score_T2)
    of_answer = score_answer(window.context[begin:end], golds, settings.may_be_null)
    of_null = score_answer("", golds, settings.may_be_null)
    threshold = settings.null_threshold if settings.may_be_null else np.inf
    return (window.number, score, *of_answer, null, *of_null, threshold, begin, end)


def best_of_questions(row_NW: np.ndarray) -> QuestionScores:
    """See `CollectedAnswers.questions`."""
    if not len(row_NW):
        none = np.zeros(0)
        return QuestionScores(none, none, none, none.astype(np.int64), none.astype(bool))
    order_N = np.lexsort((-row_NW[:, 1], row_NW[:, 0]))  # stable: of equal scores the first window
    begin_M = np.flatnonzero(np.diff(row_NW[order_N, 0], prepend=-1))
    window_M = order_N[begin_M]
    best_MW = row_NW[window_M]
    null_M = np.minimum.reduceat(row_NW[order_N, 4], begin_M)
    is_null_M = null_M - best_MW[:, 1] > best_MW[:, 7]
    exact_M, f1_M = (np.where(is_null_M, best_MW[:, 5 + one], best_MW[:, 2 + one]) for one in (0, 1))
    return QuestionScores(best_MW[:, 0].astype(np.int64), exact_M, f1_M, window_M, is_null_M)


def answer_of(windows: Sequence[Tuple[Window, np.ndarray]]) -> Dict[str, Any]:
    """The best answer over the windows of a question; it has no score where the context has no token to answer with."""
    row_NW = np.array([row_of(window, score_T2) for window, score_T2 in windows])
    best = best_of_questions(row_NW)
    row = row_NW[best.window_M[0]]
    window = windows[int(best.window_M[0])][0]
    begin, end = int(row[8]), int(row[9])
    is_null = bool(best.is_null_M[0]) or begin == end
    return {
        "id": window.question.id, "question": window.question.text,
        "answer": "" if is_null else window.context[begin:end], "begin": None if is_null else begin,
        "score": None if row[1] == NOWHERE else round(float(row[1]), 4),
        "score_of_none": round(float(row_NW[:, 4].min()), 4),
    }  # fmt: skip
