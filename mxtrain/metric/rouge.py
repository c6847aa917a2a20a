"""ROUGE, the overlap of a generated summary with its reference, as the package rouge_score computes it.

Counts of words and n-grams are whole numbers, from which the F1 of each summary follows; the metric is their mean.

Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004), https://aclanthology.org/W04-1013; details
such as the words and the union of subsequences are those of rouge_score 0.1.2.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import ClassVar, List, Literal, Sequence, Set, Tuple

from mxtrain.metric.host import Collected
from mxtrain.metric.porter import stem_word
from mxtrain.metric.texts import CollectedTexts, TextMetric
from mxtrain.types.kinds import Takes, Translations

STEMMED_FROM = 4
"""Characters of the shortest word that is stemmed."""
_SEPARATORS = re.compile("[^a-z0-9]+")


class Rouge(TextMetric):
    """Mean F1 of ROUGE over all summaries, from 0 to 1."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(Translations)

    variant: Literal["1", "2", "L", "Lsum"] = "1"
    """Units of the overlap: 1 = words; 2 = pairs of words; L = the longest common subsequence of words; Lsum = the same
    for each sentence of the reference with all sentences of the summary, which line ends separate."""
    stem: bool = False
    """Compare the stems of words of four letters or more, by the Porter stemmer (use_stemmer of rouge_score)."""
    tokenize: Literal["auto", "latin", "characters", "spaces"] = "auto"
    """Words: latin = letters a to z and digits in lower case, as in rouge_score, which ignores all other letters;
    characters = each character but white space; spaces = between white space, in lower case; auto = characters for
    training targets without spaces between words, otherwise latin."""

    def for_language(self, language: str) -> Rouge:
        if self.tokenize != "auto":
            return self
        return self.model_copy(update={"tokenize": "characters" if language else "latin"})

    @property
    def signature(self) -> str:
        """Returns the settings that determine the value."""
        return f"rouge{self.variant}|F1|stem:{'porter' if self.stem else 'no'}|tok:{self.tokenize}"

    @property
    def num_counts(self) -> int:
        """Returns the number of counts: units of both, of the summary, and of the reference."""
        return 3

    def count(self, prediction: str, reference: str) -> Sequence[int]:
        if self.variant == "Lsum":
            return _count_sentences(*map(self._sentences, (prediction, reference)))
        predicted, wanted = self._words(prediction), self._words(reference)
        if self.variant == "L":
            return len(_common_positions(wanted, predicted)), len(predicted), len(wanted)
        size = int(self.variant)
        both = [Counter(zip(*(words[start:] for start in range(size)))) for words in (predicted, wanted)]
        return sum((both[0] & both[1]).values()), sum(both[0].values()), sum(both[1].values())

    def of_sums(self, sums: List[int], num_samples: int) -> float:
        matches, predicted, wanted = sums
        precision, recall = matches / max(predicted, 1), matches / max(wanted, 1)
        return 2 * precision * recall / (precision + recall) if matches else 0.0

    def compute(self, collected: Collected) -> float:
        # Not of the sums: the mean of the F1 of summaries is what rouge_score and papers report.
        assert isinstance(collected, CollectedTexts)
        counts_NC = collected.counts(self)
        if not len(counts_NC):
            return math.nan
        return math.fsum(self.of_sums(counts, 1) for counts in counts_NC.astype(int).tolist()) / len(counts_NC)

    def _sentences(self, text: str) -> List[List[str]]:
        return [self._words(line) for line in text.split("\n") if line]

    def _words(self, text: str) -> List[str]:
        if self.tokenize == "characters":
            return [character for character in text.lower() if not character.isspace()]
        words = text.lower().split() if self.tokenize == "spaces" else _SEPARATORS.sub(" ", text.lower()).split()
        return [stem_word(word) if len(word) >= STEMMED_FROM else word for word in words] if self.stem else words


def _count_sentences(predicted: Sequence[List[str]], wanted: Sequence[List[str]]) -> Tuple[int, int, int]:
    """Returns the counts of ROUGE-Lsum; a word counts as often as it is in both."""
    left = [Counter(word for words in sentences for word in words) for sentences in (predicted, wanted)]
    sizes = [sum(counter.values()) for counter in left]
    hits = 0
    for words in wanted:
        positions: Set[int] = set()
        for others in predicted:
            positions.update(_common_positions(words, others))
        for position in sorted(positions):
            word = words[position]
            if all(counter[word] > 0 for counter in left):
                hits += 1
                for counter in left:
                    counter[word] -= 1
    return hits, sizes[0], sizes[1]


def _common_positions(words: Sequence[str], others: Sequence[str]) -> List[int]:
    """Returns the positions in `words` of a longest common subsequence; of several, that of rouge_score."""
    length = [[0] * (len(others) + 1)]
    for word in words:
        before, row = length[-1], [0]
        for column, other in enumerate(others):
            row.append(before[column] + 1 if word == other else max(before[column + 1], row[column]))
        length.append(row)
    row_number, column = len(words), len(others)
    positions = []
    while row_number and column:
        if words[row_number - 1] == others[column - 1]:
            row_number, column = row_number - 1, column - 1
            positions.append(row_number)
        elif length[row_number][column - 1] > length[row_number - 1][column]:
            column -= 1
        else:
            row_number -= 1
    return positions
