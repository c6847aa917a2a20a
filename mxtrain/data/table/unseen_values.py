"""Counts values of categories that are unseen in training. Exported folders have a copy of this module."""

from __future__ import annotations

import difflib
from typing import Dict, List, Mapping, Optional, Sequence

MAX_EXAMPLES, MAX_COMPARED = 3, 10_000


class UnseenValues:
    """Values of columns that are in no vocabulary, which all have one id.

    Args:
        vocabularies: name of a column -> values with an id of their own.
    """

    def __init__(self, vocabularies: Mapping[str, Sequence[str]]) -> None:
        self._vocabularies = vocabularies
        self._totals = dict.fromkeys(vocabularies, 0)
        self.counts: Dict[str, int] = dict.fromkeys(vocabularies, 0)
        """Number of unseen values of each column."""
        self._examples: Dict[str, Dict[str, None]] = {name: {} for name in vocabularies}

    def count(self, column: str, unseen: Optional[str], times: int = 1) -> None:
        """Counts the value of a row.

        Args:
            column: name of the column.
            unseen: the value if it is in no vocabulary; None for missing and known values.
            times: number of rows.
        """
        self._totals[column] += times
        if unseen is not None and times:
            self.counts[column] += times
            examples = self._examples[column]
            if len(examples) < MAX_EXAMPLES:
                examples[unseen] = None

    def sentences(self) -> List[str]:
        """Returns a sentence for each column with unseen values: their share, and examples."""
        return [self._sentence(name, count) for name, count in self.counts.items() if count]

    def _sentence(self, name: str, count: int) -> str:
        vocabulary = self._vocabularies[name]
        examples = ", ".join(_shown(one, vocabulary) for one in self._examples[name])
        total = self._totals[name]
        return (
            f"{count / total:.3g} of the values of '{name}' ({count:,} of {total:,}) are unknown from training, "
            f"such as {examples}. All unknown values enter the network alike."
        )


def _shown(text: str, vocabulary: Sequence[str]) -> str:
    """Returns a value in quotes, and the value of the vocabulary that differs in case or spelling, if there is one."""
    values = vocabulary[:MAX_COMPARED]
    folded = text.casefold().strip()
    near = [value for value in values if value.casefold().strip() == folded]
    near = near or difflib.get_close_matches(text[:100], values, 1, 0.8)
    return f"{text[:60]!r} (training has {near[0][:60]!r})" if near else f"{text[:60]!r}"
