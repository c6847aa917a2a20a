"""The Porter stemmer with the extensions of NLTK, which the package rouge_score uses.

Source: M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the author's later changes (`bli`,
`logi`), and NLTK's: a list of irregular words, and short words that end in `ied` and `ies`.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, Optional, Sequence, Tuple

Condition = Callable[[str], bool]
Rule = Tuple[str, str, Condition]
"""Suffix, its replacement, and the condition on the word without the suffix."""

IRREGULAR: Dict[str, str] = {
    word: stem
    for stem, words in {
        "sky": "sky skies",
        "die": "dying",
        "lie": "lying",
        "tie": "tying",
        "news": "news",
        "inning": "innings inning",
        "outing": "outings outing",
        "canning": "cannings canning",
        "howe": "howe",
        "proceed": "proceed",
        "exceed": "exceed",
        "succeed": "succeed",
    }.items()
    for word in words.split()
}
VOWELS = "aeiou"


@functools.lru_cache(maxsize=1 << 16)
def stem_word(word: str) -> str:
    """Returns the stem of a word in lower case."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if len(word) <= 2:
        return word
    for step in (_plural, _past, _final_y, _double_suffix, _suffix, _last_suffix, _final_e, _double_l):
        word = step(word)
    return word


def _is_consonant(word: str, index: int) -> bool:
    if word[index] in VOWELS:
        return False
    # After a consonant, y is a vowel.
    return word[index] != "y" or index == 0 or not _is_consonant(word, index - 1)


def _measure(stem: str) -> int:
    """Returns how often a consonant follows a vowel: m in [C](VC)^m[V]."""
    kinds = [_is_consonant(stem, index) for index in range(len(stem))]
    return sum(is_consonant and not before for before, is_consonant in zip(kinds, kinds[1:]))


def _has_vowel(stem: str) -> bool:
    return not all(_is_consonant(stem, index) for index in range(len(stem)))


def _ends_in_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _is_consonant(word, len(word) - 1)


def _ends_short(word: str) -> bool:
    """Returns True if a word ends in consonant, vowel, consonant other than w, x and y; or is vowel, consonant."""
    kinds = [_is_consonant(word, index) for index in range(len(word))]
    return kinds[-3:] == [True, False, True] and word[-1] not in "wxy" or kinds == [False, True]


def _longer_than(measure: int) -> Condition:
    return lambda stem: _measure(stem) > measure


def _replaced(word: str, rules: Sequence[Rule]) -> str:
    """Applies the first rule whose suffix the word has, if its condition holds."""
    for suffix, replacement, condition in rules:
        if word.endswith(suffix):
            stem = word[: len(word) - len(suffix)]
            return stem + replacement if condition(stem) else word
    return word


def _always(stem: str) -> bool:
    return True


def _plural(word: str) -> str:
    if word.endswith("ies") and len(word) == 4:
        return word[:-1]
    return _replaced(word, [("sses", "ss", _always), ("ies", "i", _always), ("ss", "ss", _always), ("s", "", _always)])


def _past(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    stem: Optional[str] = next((word[: -len(end)] for end in ("ed", "ing") if word.endswith(end)), None)
    if stem is None or not _has_vowel(stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if _ends_in_double(stem):
        return stem if stem[-1] in "lsz" else stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _ends_short(stem) else stem


def _final_y(word: str) -> str:
    return _replaced(word, [("y", "i", lambda stem: len(stem) > 1 and _is_consonant(stem, len(stem) - 1))])


def _rules(text: str, condition: Condition) -> Tuple[Rule, ...]:
    pairs = (pair.partition(">") for pair in text.split())
    return tuple((suffix, replacement, condition) for suffix, _, replacement in pairs)


_DOUBLE: Tuple[Rule, ...] = (
    *_rules(
        "ational>ate tional>tion enci>ence anci>ance izer>ize bli>ble alli>al entli>ent eli>e ousli>ous ization>ize "
        "ation>ate ator>ate alism>al iveness>ive fulness>ful ousness>ous aliti>al iviti>ive biliti>ble fulli>ful",
        _longer_than(0),
    ),
    # The l belongs to the stem for this measure.
    ("logi", "log", lambda stem: _measure(f"{stem}l") > 0),
)
_SINGLE = _rules("icate>ic ative> alize>al iciti>ic ical>ic ful> ness>", _longer_than(0))
_LAST: Tuple[Rule, ...] = (
    *_rules("al> ance> ence> er> ic> able> ible> ant> ement> ment> ent>", _longer_than(1)),
    ("ion", "", lambda stem: _measure(stem) > 1 and stem[-1] in "st"),
    *_rules("ou> ism> ate> iti> ous> ive> ize>", _longer_than(1)),
)


def _double_suffix(word: str) -> str:
    if word.endswith("alli") and _measure(word[:-4]) > 0:
        return _double_suffix(word[:-2])
    return _replaced(word, _DOUBLE)


def _suffix(word: str) -> str:
    return _replaced(word, _SINGLE)


def _last_suffix(word: str) -> str:
    return _replaced(word, _LAST)


def _final_e(word: str) -> str:
    if not word.endswith("e"):
        return word
    stem = word[:-1]
    measure = _measure(stem)
    return stem if measure > 1 or measure == 1 and not _ends_short(stem) else word


def _double_l(word: str) -> str:
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
