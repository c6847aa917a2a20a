"""Report of `eval` for answers: exact match and F1 of the network and of a fixed pattern, if there is one, and
errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, List

import numpy as np

from mxtrain.task.collecting_report import CollectingReport
from mxtrain.text.question_answering.answer_scores import score_answer
from mxtrain.text.question_answering.best_answer import QuestionScores
from mxtrain.text.question_answering.metrics import CollectedAnswers
from mxtrain.types import Artifact, Table

if TYPE_CHECKING:
    from mxtrain.engine.predictions import Decode
    from mxtrain.text.windows import QuestionSource

MAX_SHOWN = 20


class AnswerReport(CollectingReport):
    """Scores of questions with and without answers, and the questions that were answered wrong.

    Args:
        decode: predictions from outputs.
        source: source of the questions.
    """

    def __init__(self, decode: Decode, source: QuestionSource):
        self._answers = CollectedAnswers()
        super().__init__(decode, self._answers)
        self._source = source

    def artifacts(self, title: str) -> List[Artifact]:
        self.finish()
        scores = self._answers.questions()
        return [
            Table("answers", ["questions", "exact_match", "f1", "count"], self._rows(scores)),
            self._mistakes(scores),
        ]

    def _rows(self, scores: QuestionScores) -> List[List[Any]]:
        questions = self._source.questions.questions
        has_answer_M = np.array([bool(questions[number].answers) for number in scores.number_M], bool)
        kinds = [("all", np.ones(len(has_answer_M), bool))]
        if not has_answer_M.all():
            kinds += [("with an answer", has_answer_M), ("without an answer", ~has_answer_M)]
        rows: List[List[Any]] = [
            [name, _mean(scores.exact_M[is_in_M]), _mean(scores.f1_M[is_in_M]), int(is_in_M.sum())]
            for name, is_in_M in kinds
        ]
        if self._source.baseline is not None:
            score_M2 = np.array([self._of_pattern(number) for number in scores.number_M.tolist()]).reshape(-1, 2)
            rows.append(["all, by a fixed pattern", _mean(score_M2[:, 0]), _mean(score_M2[:, 1]), len(score_M2)])
        return rows

    def _of_pattern(self, number: int) -> Any:
        question = self._source.questions.questions[number]
        assert self._source.baseline is not None
        answer = self._source.baseline(question.text, self._source.questions.contexts[question.context])
        return score_answer(answer, [gold.text for gold in question.answers], self._source.settings.may_be_null)

    def _mistakes(self, scores: QuestionScores) -> Artifact:
        row_NW = self._answers.samples()[:, 2:]
        order = np.argsort(scores.f1_M, kind="stable")
        rows: List[List[Any]] = []
        for position in order[scores.exact_M[order] < 1][:MAX_SHOWN].tolist():
            question = self._source.questions.questions[int(scores.number_M[position])]
            begin, end = row_NW[scores.window_M[position], 8:10].astype(int).tolist()
            predicted = (
                "" if scores.is_null_M[position] else self._source.questions.contexts[question.context][begin:end]
            )
            golds = " | ".join(dict.fromkeys(answer.text for answer in question.answers))
            rows.append([question.text, golds, predicted, float(scores.f1_M[position])])
        return Table("mistakes", ["question", "right", "predicted", "f1"], rows)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan
