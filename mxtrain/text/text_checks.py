"""Checks of `data check` for texts, which are read together with their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, SourceChecks, digest_of, texts_of
from mxtrain.data.checking.problems import EMPTY_TEXT, LOST_TEXT, DataLocation, DataLocations, Problem
from mxtrain.text.tokenizing.kinds import REMEDY_FOR_LOST, describe_lost
from mxtrain.text.translation.reference_text import MIN_WORDS

if TYPE_CHECKING:
    from mxtrain.text.tokenizing.base import BaseTokenizer

REPLACED = "\N{REPLACEMENT CHARACTER}"


class TextChecks(SourceChecks):
    """Checks of labelled texts or pairs of texts: of a source with `pairs` and `label_N`."""

    def __init__(self, source: Any, locations: Optional[DataLocations]) -> None:
        super().__init__(source, locations)
        self._pairs = source.pairs

    def texts(self, index: int) -> Sequence[str]:
        first, second = self._pairs[index]
        return [first] if second is None else [first, second]

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        texts, location = self.texts(index), self.location(index)
        names = ["the text"] if len(texts) == 1 else ["the first text", "the second text"]
        problems = [
            Problem(EMPTY_TEXT, location, f"{location}: {name} is empty.", "Complete or remove it.")
            for name, text in zip(names, texts)
            if not text.strip()
        ]
        label = self._source.label_N[index]
        classes: Sequence[int] = ()
        if label.dtype.kind == "i":
            classes = np.flatnonzero(label).tolist() if label.ndim else [int(label)]
        return Checked(problems, b"" if problems else _digest_of_texts(texts), classes)


class LostTextChecks:
    """Checks of texts, including characters that a given vocabulary cannot represent.

    Args:
        checks: checks of the texts.
        vocabularies: tokenizer and path of its file for each text of a sample; the last applies to all further texts.
    """

    def __init__(self, checks: Checks, vocabularies: Sequence[Tuple[BaseTokenizer, str]]) -> None:
        self._checks, self._vocabularies = checks, vocabularies

    def __len__(self) -> int:
        return len(self._checks)

    def location(self, index: int) -> DataLocation:
        """See `Checks`."""
        return self._checks.location(index)

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        checked, location = self._checks.check(index), self.location(index)
        problems = list(checked.problems)
        for number, text in enumerate(texts_of(self._checks, index)):
            tokenizer, path = self._vocabularies[min(number, len(self._vocabularies) - 1)]
            lost = tokenizer.lost(text)
            if lost:
                fact = f"{location}: the vocabulary {path} loses characters of the text, {describe_lost(lost)}."
                problems.append(Problem(LOST_TEXT, location, fact, REMEDY_FOR_LOST))
        return Checked(problems, checked.digest, checked.classes)


class ParagraphChecks(SourceChecks):
    """Checks of the paragraphs of a split."""

    def texts(self, index: int) -> Sequence[str]:
        return [self._source[index]]

    def check(self, index: int) -> Checked:
        """See `Checks`. Short texts, such as headings, may occur any number of times."""
        text = self._source[index]
        return Checked(digest=b"" if len(text.split()) < MIN_WORDS else _digest_of_texts([text]))


def _digest_of_texts(texts: Sequence[str]) -> bytes:
    """Returns the hash of texts; empty if bytes that are no UTF-8 were replaced, because the original is unknown."""
    if any(REPLACED in text for text in texts):
        return b""
    return digest_of(*(text.encode("utf-8", "surrogatepass") for text in texts))
