"""Windows of contexts, and the best answer in a window. Exported folders contain a copy of this module.

Legend: T tokens of a sample, C tokens of a window, L maximum number of tokens of an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Sequence

import numpy as np

NOWHERE = -1e30
"""Score of the best answer in a window without tokens."""


class WindowSettings(NamedTuple):
    """Settings of windows over contexts, and of the answers in them.

    Attributes:
        doc_stride: distance of the beginnings of consecutive windows, in tokens.
        max_question: maximum number of tokens of a question; longer ones are truncated.
        max_answer: maximum number of tokens of a predicted answer.
        marks_matches: True if context words that occur in the question have a separate token type.
        may_be_null: True if questions may have no answer.
        null_threshold: difference by which the score of no answer must exceed that of the best answer.
    """

    doc_stride: int
    max_question: int
    max_answer: int
    marks_matches: bool
    may_be_null: bool
    null_threshold: float


class Asked(Protocol):
    """A question, see `mxtrain.text.question_answering.questions.Question`."""

    @property
    def id(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def answers(self) -> Sequence[Any]: ...


class BestSpan(NamedTuple):
    """The best answer in a window.

    Attributes:
        score: sum of the scores of its first and last token; `NOWHERE` if the window has no token of the context.
        score_of_none: score of no answer.
        begin, end: its characters in the context: [first character, end).
    """

    score: float
    score_of_none: float
    begin: int
    end: int


@dataclass(frozen=True)
class Window:
    """Host data of a sample: a window of a context.

    Attributes:
        number: index of the question in its split.
        question: the question with its reference answers.
        context: text of the context.
        span_C2: position of each token of the window in the context: [first character, end).
        begin: index of the window's first token in the sample.
        settings: settings of windows and answers.
    """

    number: int
    question: Asked
    context: str
    span_C2: np.ndarray
    begin: int
    settings: WindowSettings

    def best(self, score_T2: np.ndarray) -> BestSpan:
        """Returns the best answer.

        Args:
            score_T2: scores of each token as the first and the last of the answer.
        """
        end = self.begin + len(self.span_C2)
        start_C, stop_C = score_T2[self.begin : end].astype(np.float64).T
        null = float(score_T2[0].sum(dtype=np.float64))
        if not len(start_C):
            return BestSpan(NOWHERE, null, 0, 0)
        length = min(self.settings.max_answer, len(start_C))
        padded = np.concatenate([np.full(length - 1, NOWHERE), start_C])
        # Row j holds the scores of the possible first tokens of an answer that ends at token j, the earliest first.
        # This is the view that sliding_window_view returns, which takes ten times as long for few tokens.
        start_CL: np.ndarray = np.ndarray((len(start_C), length), padded.dtype, padded, strides=padded.strides * 2)
        best_C = start_CL.argmax(axis=1)
        sum_C = start_CL[np.arange(len(start_C)), best_C] + stop_C
        last = int(sum_C.argmax())
        first = last - length + 1 + int(best_C[last])
        return BestSpan(float(sum_C[last]), null, int(self.span_C2[first, 0]), int(self.span_C2[last, 1]))
