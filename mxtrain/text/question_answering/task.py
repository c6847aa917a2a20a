"""Extractive question answering: finds the part of a context that answers a question.

Legend: B batch, T tokens of a sample.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, ClassVar, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.errors import ConfigError, DataError
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report, Task
from mxtrain.text.kinds import AnswerSpan
from mxtrain.text.losses import SpanSoftmaxCrossEntropy
from mxtrain.text.model import TextModel
from mxtrain.text.question_answering.best_answer import answer_of
from mxtrain.text.question_answering.squad import Squad
from mxtrain.types import Artifact, Table, shapes_of
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.text.question_answering.answer_window import Window
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, JsonObject, LossBlock


class QuestionAnswering(Task):
    """Extractive question answering.

    Outputs are scores (B, T, 2) of each token as the first and as the last of the answer. Targets are the indices of
    these two tokens, (B, 2), and the number of tokens, (B,). Predictions are the scores; the best answer over all
    windows of a context is found on the host.
    """

    name: ClassVar[str] = "question_answering"
    takes: ClassVar[Takes] = Takes(AnswerSpan)

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss, dataset, model = description.loss, description.dataset, description.model
        if not isinstance(loss, SpanSoftmaxCrossEntropy):
            raise ConfigError(
                "task=question_answering: a loss of your own takes scores (B, T, 2), first and last tokens (B, 2) and "
                "lengths (B,): a subclass of mxtrain.text.losses.SpanSoftmaxCrossEntropy."
            )
        loss.require_unsmoothed()
        matches = isinstance(dataset, Squad) and dataset.exact_match is True
        if matches and isinstance(model, TextModel) and model.num_token_types < 3:
            raise ConfigError(
                f"dataset.exact_match=true: it needs a third token type, and {type(model).__name__} knows "
                f"{model.num_token_types}. Type dataset.exact_match=false, or model=bilstm."
            )

    def num_classes(self, signature: Signature) -> int:
        return 2

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        return [(shapes_of(signature.shape)[0][0], 2)]

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        return description.loss.build(2, training)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the scores (B, T, 2)."""
        return outputs[0].astype("float32")

    def record_of(self, index: int, meta: Any) -> Optional[int]:
        """Returns the index of the question of a window."""
        return int(meta.number)

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the question, its first reference answer, and the best answer in this window of the context."""
        window: Window = sample.meta
        best, answers = window.best(sample.prediction), window.question.answers
        return {
            "question": window.question.text,
            "true": answers[0].text if answers else "",
            "predicted": window.context[best.begin : best.end],
        }

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the most probable first and last token of a single window."""
        first, last = prediction.argmax(axis=0).tolist()
        return {"first_token": first, "last_token": last}

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        windows: Sequence[Window] = source.windows  # type: ignore[attr-defined]  # of QuestionSource
        rows = []
        for number, row in self.prediction_format().rows(signature, source, enumerate(predictions), 1):
            question = next(window.question for window in windows if window.number == number)
            golds = " | ".join(dict.fromkeys(answer.text for answer in question.answers))
            rows.append([question.text, golds, str(row["answer"])])
        return [Table("samples", ["question", "right", "predicted"], rows)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.text.question_answering.report import AnswerReport

        return AnswerReport(self.build_decode(description, signature), source)  # type: ignore[arg-type]

    def prediction_format(self) -> PredictionFormat:
        return QuestionAnsweringFormat(self)


class QuestionAnsweringFormat(PredictionFormat):
    """Rows and files of the predictions of `QuestionAnswering`."""

    formats: ClassVar[Tuple[str, ...]] = ("squad",)

    def rows(
        self, signature: Signature, source: Samples, predictions: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:
        """Yields the best answer to each question. Its score is the sum of the scores of its first and its last token;
        `score_of_none` is the score of no answer."""
        windows: Sequence[Window] = source.windows  # type: ignore[attr-defined]  # of QuestionSource
        scored_windows = ((windows[index], prediction) for index, prediction in predictions)
        for number, question_windows in itertools.groupby(scored_windows, key=lambda pair: pair[0].number):
            yield number, answer_of(list(question_windows))

    def write_as(self, form: str, signature: Signature, rows: Iterable[JsonObject]) -> Iterator[str]:
        """Yields the lines of a prediction file for SQuAD's scripts: one object that maps ids to answers.

        Raises:
            DataError: two questions have one id, so that one of their answers would be lost.
        """
        separator, ids = "{", set()
        for row in rows:
            if row["id"] in ids:
                raise DataError(
                    f"{row['file']}: another question has the id '{row['id']}', too, and format=squad has one answer "
                    "for each id. Give each its own, or type format=jsonl."
                )
            ids.add(row["id"])
            yield f"{separator}\n{json.dumps(row['id'])}: {json.dumps(row['answer'])}"
            separator = ","
        yield "\n}\n" if separator == "," else "{}\n"
