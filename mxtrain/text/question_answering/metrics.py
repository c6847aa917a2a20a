"""Exact match and F1 of answers, over the windows of each question's context.

Legend: N windows, M questions, B batch, T tokens of a sample.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Optional, Tuple, Type

import numpy as np

from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.text.question_answering.answer_scores import score_answer
from mxtrain.text.question_answering.answer_window import Window


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


class CollectedAnswers(Collected):
    """Has for each window: the question, the score of its best answer, that answer's exact match and F1, the score of
    no answer, what exact match and F1 would be then, by how much that must be above, and the position of the answer."""

    width: ClassVar[int] = 10

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Notes a batch: scores of first and last token (B, T, 2), and the `Window` of each sample."""
        assert meta_B is not None
        for index, score_T2, window in zip(index_B, prediction_B, meta_B):
            self.add(int(index), np.array([row_of(window, score_T2)]))

    def questions(self) -> QuestionScores:
        """Returns the best answer of each question over all of its windows; none where the least score of none over its
        windows is so far above that."""
        return best_of_questions(self.samples()[:, 2:])


def row_of(window: Window, score_T2: np.ndarray) -> Tuple[float, ...]:
    """Returns a row of `CollectedAnswers`."""
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


class AnswerMetric(HostMetric):
    """Base of metrics of answers."""

    tasks: ClassVar[Tuple[str, ...]] = ("question_answering",)
    collects: ClassVar[Type[Collected]] = CollectedAnswers

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, CollectedAnswers)
        found = self.of_questions(collected.questions())
        return float(found.mean()) if len(found) else 0.0

    def of_questions(self, scores: QuestionScores) -> np.ndarray:
        """Returns the metric of each question."""
        raise NotImplementedError


class ExactMatch(AnswerMetric):
    """Share of questions whose predicted answer is one of the right ones, after SQuAD's normalisation (EM), from 0 to
    1."""

    def of_questions(self, scores: QuestionScores) -> np.ndarray:
        return scores.exact_M


class AnswerF1(AnswerMetric):
    """Mean over questions of the best F1 of words that the predicted and a right answer share, as SQuAD's script has
    it, from 0 to 1."""

    def of_questions(self, scores: QuestionScores) -> np.ndarray:
        return scores.f1_M
