"""Exact match and F1 of answers, over the windows of each question's context.

Legend: N windows, M questions, B batch, T tokens of a sample.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Optional, Type

import numpy as np

from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.text.kinds import AnswerSpan
from mxtrain.text.question_answering.best_answer import QuestionScores, best_of_questions, row_of
from mxtrain.types.kinds import Takes


class CollectedAnswers(Collected):
    """Collects a row for each window, with the columns of `best_answer`."""

    width: ClassVar[int] = 10

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Adds a batch: scores of first and last token (B, T, 2), and the `Window` of each sample."""
        assert meta_B is not None
        for index, score_T2, window in zip(index_B, prediction_B, meta_B):
            self.add(int(index), np.array([row_of(window, score_T2)]))

    def questions(self) -> QuestionScores:
        """Returns the scores of each question over all of its windows.

        No answer is predicted if its minimum score over the windows exceeds the score of the best answer by the
        threshold.
        """
        return best_of_questions(self.samples()[:, 2:])  # without the indices of sample and row


class AnswerMetric(HostMetric):
    """Base of metrics of answers."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(AnswerSpan)
    collects: ClassVar[Type[Collected]] = CollectedAnswers
    of_single_samples: ClassVar[bool] = True

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, CollectedAnswers)
        value_M = self.of_questions(collected.questions())
        return float(value_M.mean()) if len(value_M) else math.nan

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
