"""Exact match and F1 of answers as the scripts of SQuAD 1.1 and 2.0 compute them."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from typing import List, Sequence, Tuple

from mxtrain.data.writing import is_unspaced, split_units

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Lowercases a text and removes punctuation, articles and superfluous white space.

    Texts in scripts without spaces, e.g. Chinese, become characters with spaces between them, without the punctuation
    of Unicode, as in the script of MLQA (https://arxiv.org/abs/1910.07475).
    """
    if is_unspaced(text):
        letters = (" " if unicodedata.category(letter).startswith("P") else letter for letter in text.lower())
        return " ".join(split_units("".join(letters)))
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score_answer(answer: str, golds: Sequence[str], may_be_null: bool) -> Tuple[float, float]:
    """Returns exact match and F1, each the maximum over the reference answers.

    Args:
        answer: predicted answer; empty = no answer.
        golds: reference answers; empty = there is no answer.
        may_be_null: True if questions may have no answer, as in SQuAD 2.0, whose script skips reference answers that
            are empty after normalization, and counts two empty answers as equal.
    """
    # SQuAD 1.1 and 2.0 differ in what they do with right answers of which normalisation leaves nothing.
    kept = [gold for gold in golds if normalized(gold)] if may_be_null else list(golds)
    scores = [_score(normalized(answer), normalized(gold), may_be_null) for gold in kept or [""]]
    return max(exact for exact, _ in scores), max(f1 for _, f1 in scores)


def _score(answer: str, gold: str, may_be_null: bool) -> Tuple[float, float]:
    exact = float(answer == gold)
    words: List[List[str]] = [answer.split(), gold.split()]
    if may_be_null and not all(words):
        return exact, exact
    same = sum((Counter(words[0]) & Counter(words[1])).values())
    return exact, 2 * same / (len(words[0]) + len(words[1])) if same else 0.0
