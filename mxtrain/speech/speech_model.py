"""Language models for beam search: n-grams from an ARPA file, or of the training transcripts.

A model has characters or words. Word models score a word when it is complete: at a space, and at the end of the text.
"""

from __future__ import annotations

import math
from typing import Dict, Hashable, List, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.text_stream import open_text
from mxtrain.errors import DataError
from mxtrain.speech.alphabet import SPACE
from mxtrain.task.ngrams import KneserNey

BEGIN, END, UNKNOWN_WORD, SPACE_WORD = "<s>", "</s>", "<unk>", "<space>"
NEVER = -20.0
"""Log probability of an unknown word in a model without <unk>."""
LN10 = math.log(10.0)
_MAX_KEPT = 1 << 16
Words = Tuple[str, ...]


class Arpa:
    """Backoff n-gram model.

    Args:
        log_p: log probability of each n-gram, natural logarithm.
        backoff: logarithm of the backoff weight of each n-gram.
        order: number of words of the longest n-grams.
    """

    def __init__(self, log_p: Dict[Words, float], backoff: Dict[Words, float], order: int) -> None:
        self._log_p, self._backoff, self.order = log_p, backoff, order

    @property
    def is_of_characters(self) -> bool:
        """Returns True if every word of the model is one character."""
        special = (BEGIN, END, UNKNOWN_WORD, SPACE_WORD, "<UNK>")
        return all(len(words[0]) == 1 or words[0] in special for words in self._log_p if len(words) == 1)

    def log_p(self, context: Words, word: str) -> float:
        """Returns the log probability of a word after a context. Source: Katz (1987), as in the ARPA format."""
        if (word,) not in self._log_p:
            word = UNKNOWN_WORD
            if (word,) not in self._log_p:
                return NEVER
        weight = 0.0
        # The loop ends, because words without a unigram are replaced above.
        while (*context, word) not in self._log_p:
            weight += self._backoff.get(context, 0.0)
            context = context[1:]
        return weight + self._log_p[(*context, word)]


def read_arpa(path: str) -> Arpa:
    """Reads an n-gram model in ARPA format.

    Raises:
        DataError: the file cannot be read, or a line is invalid.
    """
    log_p: Dict[Words, float] = {}
    backoff: Dict[Words, float] = {}
    order = longest = 0
    is_ended = False
    with open_text(path, None) as stream:
        for number, line in enumerate(stream, start=1):
            words = line.split()
            if not words or is_ended:
                continue
            if words[0].startswith("\\"):
                is_ended = words[0] == "\\end\\"
                order = _section(words[0])
                longest = max(longest, order)
            elif order:
                try:
                    probability, ngram = float(words[0]) * LN10, tuple(words[1 : 1 + order])
                    weight = float(words[1 + order]) * LN10 if len(words) > 1 + order else 0.0
                    if len(ngram) != order or len(words) > 2 + order or math.isnan(probability + weight):
                        raise ValueError
                except ValueError as error:
                    raise DataError(
                        f"{path}, line {number} is no {order}-gram of an ARPA file: a logarithm, {order} words and a "
                        "weight to back off by."
                    ) from error
                log_p[ngram] = probability
                if weight:
                    backoff[ngram] = weight
    if not log_p or not is_ended:
        raise DataError(f"{path} is no ARPA file: it must have \\1-grams: and end in \\end\\.")
    return Arpa(log_p, backoff, longest)


def _section(head: str) -> int:
    """Returns the order of the n-grams of a section; 0 for other sections."""
    number = head[1 : -len("-grams:")] if head.endswith("-grams:") else ""
    return int(number) if number.isdecimal() and len(number) < 3 else 0


class ArpaScorer:
    """An ARPA model as `prefix_beam.Scorer`. A state consists of the last words, and the beginning of the next word.

    Args:
        model: model of words or characters.
        characters: characters of the alphabet.
        weight: weight of the log probabilities.
        bonus: added for each word (or character).
    """

    def __init__(self, model: Arpa, characters: Sequence[str], weight: float, bonus: float) -> None:
        self._model, self._characters, self._weight, self._bonus = model, list(characters), weight, bonus
        self._of_characters = model.is_of_characters
        self._known: Dict[Hashable, np.ndarray] = {}

    def initial_state(self) -> Hashable:
        return (BEGIN,), ""

    def _score(self, context: Words, word: str) -> float:
        return self._weight * self._model.log_p(context, word) + self._bonus

    def scores(self, state: Hashable) -> np.ndarray:
        if state not in self._known:
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            context, started = _as_state(state)
            score_C = np.zeros(len(self._characters))
            for number, character in enumerate(self._characters):
                if self._of_characters:
                    score_C[number] = self._score(context, _word(character))
                elif character == SPACE and started:
                    score_C[number] = self._score(context, started)
            self._known[state] = score_C
        return self._known[state]

    def follow(self, state: Hashable, index: int) -> Hashable:
        context, started = _as_state(state)
        new_character = self._characters[index]
        if self._of_characters:
            return self._cut((*context, _word(new_character))), ""
        if new_character != SPACE:
            return context, started + new_character
        return (self._cut((*context, started)), "") if started else state

    def _cut(self, context: Words) -> Words:
        return context[max(len(context) - self._model.order + 1, 0) :]

    def end(self, state: Hashable) -> float:
        context, started = _as_state(state)
        last = self._score(context, started) if started else 0.0
        context = (*context, started) if started else context
        return last + self._weight * self._model.log_p(context, END)


def _as_state(state: Hashable) -> Tuple[Words, str]:
    assert isinstance(state, tuple)
    context, started = state
    return context, started


def _word(character: str) -> str:
    """Returns a character as a character model writes it."""
    return SPACE_WORD if character == SPACE else character


class CharacterScorer:
    """Character n-grams of the training transcripts as `prefix_beam.Scorer`. A state consists of the last characters.

    Args:
        labels: characters of each transcript.
        num_characters: number of characters of the alphabet.
        order: number of characters of the longest n-grams.
        weight: weight of the log probabilities.
        bonus: added for each character.
    """

    def __init__(
        self, labels: Sequence[np.ndarray], num_characters: int, order: int, weight: float, bonus: float
    ) -> None:
        # Transcripts are separated by an extra symbol, whose index follows that of the last character.
        self._edge, self._order, self._weight, self._bonus = num_characters, order, weight, bonus
        parts: List[np.ndarray] = [np.array([self._edge])]
        for label in labels:
            parts += [label.astype(np.int64), np.array([self._edge])]
        self._model = KneserNey(np.concatenate(parts), order, num_characters + 1)
        self._known: Dict[Hashable, np.ndarray] = {}

    def _log_p(self, state: Hashable) -> np.ndarray:
        if state not in self._known:
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            assert isinstance(state, tuple)
            self._known[state] = np.log(self._model.next_probabilities(state))
        return self._known[state]

    def initial_state(self) -> Hashable:
        return (self._edge,)

    def scores(self, state: Hashable) -> np.ndarray:
        return self._weight * self._log_p(state)[: self._edge] + self._bonus

    def follow(self, state: Hashable, character: int) -> Hashable:
        assert isinstance(state, tuple)
        return (*state, character)[-max(self._order - 1, 1) :]

    def end(self, state: Hashable) -> float:
        return self._weight * float(self._log_p(state)[self._edge])
