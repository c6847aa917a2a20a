"""Samples of extractive question answering: overlapping windows of contexts, and their loader.

A sample is `[CLS] question [SEP] window [SEP]`. The target is the positions of the first and the last token of the
answer, or twice the position of [CLS] if the window does not contain the answer.

Legend: N samples (windows), B batch, T tokens of a sample, Q tokens of a question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, SourceChecks, digest_of
from mxtrain.data.checking.problems import EMPTY_TEXT, DataLocation, Problem
from mxtrain.data.corpus.shards import Ragged
from mxtrain.errors import DataError
from mxtrain.text.loader import TextLoader
from mxtrain.text.question_answering.answer_window import Window, WindowSettings
from mxtrain.text.question_answering.context_windows import TokenizedContext, sample_windows
from mxtrain.text.question_answering.questions import Question, Questions
from mxtrain.text.tokenizing.kinds import TextsInMemory

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks
    from mxtrain.data.loading.placing import HostArrays
    from mxtrain.text.tokenizing.config import TokenizerConfig
    from mxtrain.text.tokenizing.kinds import TrainingTexts


class QuestionSource:
    """Questions of one split.

    Args:
        questions: questions with contexts.
        settings: settings of the windows.
        baseline: function (question, context) -> answer by a fixed pattern, for comparison; None if there is none.
    """

    def __init__(
        self, questions: Questions, settings: WindowSettings, baseline: Optional[Callable[[str, str], str]] = None
    ) -> None:
        self.questions, self.settings, self.baseline = questions, settings, baseline
        self._encoded: Optional[EncodedWindows] = None

    def __len__(self) -> int:
        return len(self.questions)

    def take(self, indices: Sequence[int]) -> QuestionSource:
        """Returns the questions with these indices; indices beyond the end are ignored."""
        return QuestionSource(self.questions.take(list(indices)), self.settings, self.baseline)

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each question."""
        return _QuestionChecks(self)

    def encode(self, tokenizer_config: TokenizerConfig) -> EncodedWindows:
        """Tokenizes all windows. Cached."""
        if self._encoded is None:
            self._encoded = EncodedWindows(self.questions, self.settings, tokenizer_config)
        return self._encoded

    @property
    def windows(self) -> Sequence[Window]:
        """Returns the window of each sample, after `encode`."""
        assert self._encoded is not None
        return self._encoded.windows

    def training_texts(self) -> TrainingTexts:
        """See `TextSource`."""
        used = sorted({question.context for question in self.questions.questions})
        texts = [self.questions.contexts[index] for index in used]
        return TextsInMemory([*texts, *(question.text for question in self.questions.questions)])


class _QuestionChecks(SourceChecks):
    def location(self, index: int) -> DataLocation:
        question: Question = self._source.questions.questions[index]
        return question.location if question.location.file else DataLocation(record=index)

    def texts(self, index: int) -> Sequence[str]:
        question = self._source.questions.questions[index]
        return question.text, self._source.questions.contexts[question.context]

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        question, texts = self._source.questions.questions[index], self.texts(index)
        problems = []
        for name, text in zip(("question", "context"), texts):
            if not text.strip():
                location = self.location(index)
                fact = f"{location} (question '{question.id}'): the {name} is empty."
                problems.append(Problem(EMPTY_TEXT, location, fact, "Complete or remove it."))
        return Checked(problems, digest_of(*(text.encode("utf-8", "surrogatepass") for text in texts)))


class EncodedWindows:
    """Tokenized windows of contexts with their questions.

    Attributes:
        length_N: number of tokens of each sample, including special tokens.
        label_N: not used; -1 for each sample.
        windows: `Window` of each sample.
        span_N2: positions of the first and the last token of each answer.

    Raises:
        DataError: the tokenizer has no special token for the beginning and the end of a text.
    """

    def __init__(self, questions: Questions, settings: WindowSettings, config: TokenizerConfig) -> None:
        special = config.tokenizer.special
        if special.first is None or special.last is None:
            raise DataError(
                "question answering needs special tokens for the beginning and the end of a text, [CLS] and [SEP] or "
                "<bos> and <eos>, and the vocabulary has none. Give another file, or dataset.vocab=null."
            )
        self._special, self._pad = (special.first, special.last), special.pad or 0
        self._tokenizer, self._settings, self._max_length = config.tokenizer, settings, config.max_length
        self.windows: List[Window] = []
        rows: List[Tuple[np.ndarray, np.ndarray]] = []
        spans: List[Tuple[int, int]] = []
        contexts: dict = {}
        for number, question in enumerate(questions.questions):
            if question.context not in contexts:  # keeps only the last context, to save memory
                text = questions.contexts[question.context]
                contexts = {question.context: TokenizedContext(text, *config.tokenizer.offsets(text))}
            for row, span, window in self._windows_of(number, question, contexts[question.context]):
                rows.append(row)
                spans.append(span)
                self.windows.append(window)
        self.length_N = np.fromiter((len(tokens) for tokens, _ in rows), np.int32, len(rows))
        begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.length_N, dtype=np.int64)])
        empty = [np.zeros(0, np.int32)]
        self._tokens = Ragged(np.concatenate([tokens for tokens, _ in rows] or empty), begin)
        self._types = np.concatenate([types for _, types in rows] or empty)
        self.span_N2 = np.array(spans, np.float32).reshape(-1, 2)
        self.label_N = np.broadcast_to(np.int32(-1), len(self.windows))

    def _windows_of(self, number: int, question: Question, context: TokenizedContext) -> Any:
        """Yields (tokens, types), (first, last token of the answer) and window for each window of a question."""
        question_Q = np.array(self._tokenizer.tokens(question.text), np.int32)
        answer = context.tokens_of(*question.answers[0]) if question.answers else None
        samples = sample_windows(question_Q, question.text, context, self._special, self._settings, self._max_length)
        for first, tokens, types, begin in samples:
            # A window without the whole answer trains [CLS], the place 0, as in BERT's code.
            span_C2, span = context.span_C2[first : first + len(tokens) - begin - 1], (0, 0)
            if answer is not None and answer[0] >= first and answer[1] < first + len(span_C2):
                span = (answer[0] - first + begin, answer[1] - first + begin)
            yield (tokens, types), span, Window(number, question, context.text, span_C2, begin, self._settings)

    def padded(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `EncodedSamples`."""
        length_B = self.length_N[index_B]
        inside_BT = np.arange(length) < length_B[:, None]
        where = (self._tokens.begin[index_B][:, None] + np.arange(length))[inside_BT]
        token_BT = np.full((len(index_B), length), self._pad, np.int32)
        type_BT = np.zeros_like(token_BT)
        token_BT[inside_BT], type_BT[inside_BT] = self._tokens.value[where], self._types[where]
        return token_BT, type_BT, length_B


class WindowLoader(TextLoader):
    """Loads batches of windows. `Batch.meta` holds the `Window` of each sample."""

    _encoded: EncodedWindows

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        token_BT, type_BT, length_B = self._encoded.padded(share_B, self._length(index_B))
        length_B = length_B.astype(np.float32)
        return (token_BT, type_BT, length_B), (self._encoded.span_N2[share_B], length_B)

    def _meta(self, index_B: np.ndarray) -> np.ndarray:
        meta_B = np.empty(len(index_B), object)
        meta_B[:] = [self._encoded.windows[index] for index in index_B]
        return meta_B
