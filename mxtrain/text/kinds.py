"""Kinds of samples and targets of texts."""

from __future__ import annotations

from typing import ClassVar

from mxtrain.types.kinds import PositionLabels, SampleKind, TargetKind, Tokens, Translations


class Texts(SampleKind):
    """Tokens and token types (B, T), and numbers of tokens (B,)."""

    name: ClassVar[str] = "text"
    has_text: ClassVar[bool] = True


class MaskedTokens(PositionLabels):
    """The tokens at the masked positions of a text, (B, M)."""


class TokenTags(PositionLabels):
    """The tag of each word of a sentence, at its first token, (B, T)."""


class AnswerSpan(TargetKind):
    """The first and the last token of an answer, (B, 2)."""


class NextTokens(Tokens):
    """The token after each token of a text, (B, T)."""


class Summaries(Translations):
    """A short text with the content of a document."""
