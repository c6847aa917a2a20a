"""Summarization of texts, token by token."""

from __future__ import annotations

from typing import ClassVar

from mxtrain.text.kinds import Summaries
from mxtrain.text.translation.task import Translation
from mxtrain.types import NonNegative, NonNegativeFloat
from mxtrain.types.kinds import Takes


class Summarization(Translation):
    """Summarization: networks, loss and beam search of translation, with documents as sources and summaries as targets.

    Outputs and targets are those of `Translation`.
    """

    name: ClassVar[str] = "summarization"
    takes: ClassVar[Takes] = Takes(Summaries)
    text_name: ClassVar[str] = "summary"
    texts_name: ClassVar[str] = "summaries"

    max_length_ratio: NonNegativeFloat = 0.0
    """A summary has at most max_length_ratio * length of the document + max_length_offset tokens."""
    max_length_offset: NonNegative = 128
    """See max_length_ratio."""
