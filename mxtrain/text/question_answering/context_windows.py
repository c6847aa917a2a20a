"""Tokens of the windows of a context. Exported folders have a copy of this module.

A context longer than a window becomes several samples. For each window, a worker computes the score of its best answer,
and exact match and F1 of this answer. Workers exchange only these numbers, and then find the best window.

Legend: T tokens of a sample, C tokens of a context, Q tokens of a question, W words of a context, K words of a context
that occur in the question.
"""

from __future__ import annotations

import re
from typing import Iterator, List, Optional, Tuple

import numpy as np

from mxtrain.text.question_answering.answer_window import WindowSettings

QUESTION, CONTEXT, MATCH = range(3)
"""Token types."""
WORD = re.compile(r"\w+")
NUM_SPECIAL = 3
"""Special tokens of a sample."""


class TokenizedContext:
    """A tokenized context.

    Args:
        text: the context.
        token_C: its tokens.
        span_C2: position of each token in the text: [first character, end).
    """

    def __init__(self, text: str, token_C: np.ndarray, span_C2: np.ndarray) -> None:
        self.text, self.token_C, self.span_C2 = text, token_C, span_C2
        words = [(match.start(), match.end(), match.group().lower()) for match in WORD.finditer(text)]
        self._begin_W = np.array([begin for begin, _, _ in words], np.int64)
        self._end_W = np.array([end for _, end, _ in words], np.int64)
        self._words = [word for _, _, word in words]

    def matches(self, question: str) -> np.ndarray:
        """Returns a mask of the tokens of words that occur in the question.

        Source: Chen et al., https://arxiv.org/abs/1704.00051, section 3.2.
        """
        question_words = {word.lower() for word in WORD.findall(question)}
        in_question_W = np.array([word in question_words for word in self._words], bool)
        begin_K, end_K = self._begin_W[in_question_W], self._end_W[in_question_W]
        # For each token, find the last matching word that begins before the end of the token.
        position_C = np.searchsorted(begin_K, self.span_C2[:, 1], side="left") - 1
        if not len(begin_K):
            return np.zeros(len(self.token_C), bool)
        return (position_C >= 0) & (self.span_C2[:, 0] < end_K[np.maximum(position_C, 0)])

    def tokens_of(self, text: str, begin: int) -> Optional[Tuple[int, int]]:
        """Returns the first and the last token of a part of the text, from character `begin`; None without tokens."""
        inside = np.flatnonzero((self.span_C2[:, 1] > begin) & (self.span_C2[:, 0] < begin + len(text)))
        return (int(inside[0]), int(inside[-1])) if len(inside) else None


def sample_windows(
    question_Q: np.ndarray,
    question: str,
    context: TokenizedContext,
    special: Tuple[int, int],
    settings: WindowSettings,
    max_length: int,
) -> Iterator[Tuple[int, np.ndarray, np.ndarray, int]]:
    """Yields the samples of a question, `[CLS] question [SEP] window [SEP]`.

    Args:
        question_Q: tokens of the question; cut to `settings.max_question`.
        question: its text.
        context: the context.
        special: tokens for the beginning and the end of a text.
        settings: settings of the windows.
        max_length: maximum number of tokens of a sample.

    Yields:
        First token of the window in the context; tokens (T,) and token types (T,) of the sample, int32; index of the
        window's first token in the sample.
    """
    question_Q = question_Q[: settings.max_question]
    room, begin = max_length - len(question_Q) - NUM_SPECIAL, len(question_Q) + 2
    type_C = np.full(len(context.token_C), CONTEXT, np.int32)
    if settings.marks_matches:
        type_C[context.matches(question)] = MATCH
    for first in window_starts(len(context.token_C), room, settings.doc_stride):
        part = slice(first, first + room)
        tokens = np.concatenate([[special[0]], question_Q, [special[1]], context.token_C[part], [special[1]]])
        types = np.concatenate([np.full(begin, QUESTION), type_C[part], [CONTEXT]])
        yield first, tokens.astype(np.int32), types.astype(np.int32), begin


def window_starts(count: int, room: int, stride: int) -> List[int]:
    """Returns the first token of each window of a context, so that each token is in at least one window.

    Args:
        count: number of tokens of the context; for 0 tokens there is one window.
        room: number of tokens of a window.
        stride: distance of windows, at most `room`.
    """
    stride = min(stride, room)
    return list(range(0, max(count - room + stride - 1, 0) // stride * stride + 1, stride))
