"""What `data check` does with texts, which were read when their files were."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from mxtrain.dataset.checking.checks import Checked, SourceChecks, digest_of
from mxtrain.dataset.checking.problems import EMPTY_TEXT, DataPlaces, Problem
from mxtrain.dataset.language.reference_text import MIN_WORDS

REPLACED = "\N{REPLACEMENT CHARACTER}"


class TextChecks(SourceChecks):
    """Checks of texts with labels, or pairs of them: what has `pairs` and `label_N`."""

    def __init__(self, source: Any, places: Optional[DataPlaces]) -> None:
        super().__init__(source, places)
        self._pairs = source.pairs

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        first, second = self._pairs[index]
        texts = [first] if second is None else [first, second]
        place, names = self.place(index), ["the text"] if second is None else ["the first text", "the second text"]
        problems = [
            Problem(EMPTY_TEXT, place, f"{place}: {name} is empty.", "Complete or remove it.")
            for name, text in zip(names, texts) if not text.strip()
        ]  # fmt: skip
        label = self._source.label_N[index]
        classes = [int(label)] if label.dtype.kind == "i" else []
        return Checked(problems, b"" if problems else _digest_of_texts(texts), classes)


class ParagraphChecks(SourceChecks):
    """Checks of a sequence of paragraphs, as they are divided into splits."""

    def check(self, index: int) -> Checked:
        """See `Checks`. Short ones, such as headings, may stand anywhere any number of times."""
        text = self._source[index]
        return Checked(digest=b"" if len(text.split()) < MIN_WORDS else _digest_of_texts([text]))


def _digest_of_texts(texts: Sequence[str]) -> bytes:
    """Nothing where bytes that are no UTF-8 were replaced: what stood there is not known."""
    if any(REPLACED in text for text in texts):
        return b""
    return digest_of(*(text.encode("utf-8", "surrogatepass") for text in texts))
