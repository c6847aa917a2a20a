"""Languages whose words have no spaces between them, by the characters that texts are written in.

Metrics that count words need this: between spaces, a Chinese sentence is one word.
"""

from __future__ import annotations

import itertools
import re
from typing import Dict, Iterable, List

_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_KANA = "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_SCRIPTS = {
    "zh": _HAN,
    "ja": _KANA,
    "ko": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "th": "\u0e01-\u0e3a\u0e40-\u0e4e",
    "lo": "\u0e80-\u0edf",
    "bo": "\u0f00-\u0fff",
    "my": "\u1000-\u109f",
    "km": "\u1780-\u17ff",
}
"""Ranges of characters by the language that is most often written in them. Korean has spaces between phrases, and words
are parts of these."""
NAMES = {
    "zh": "Chinese",
    "ja": "Japanese",
    "ko": "Korean",
    "th": "Thai",
    "lo": "Lao",
    "bo": "Tibetan",
    "my": "Burmese",
    "km": "Khmer",
}
_OF_SCRIPT = {language: re.compile(f"[{characters}]") for language, characters in _SCRIPTS.items()}
_LETTER = re.compile(r"[^\W\d_]")
_UNSPACED = re.compile(f"[{''.join(characters for name, characters in _SCRIPTS.items() if name != 'ko')}]")
_UNITS = re.compile(f"{_UNSPACED.pattern}|(?:(?!{_UNSPACED.pattern})\\S)+")
_SHARE = 0.3
"""Smallest share of letters by which a script decides the language: texts in Chinese also hold Latin names."""
_KANA_SHARE = 0.05
"""Smallest share of kana in Han and kana of Japanese texts: Chinese texts hold a Japanese name at most."""
MAX_TEXTS = 2000


def language_without_spaces(texts: Iterable[str], name: str = "") -> str:
    """Returns the language of texts, if words have no spaces between them in its script, or Korean.

    Args:
        texts: the first `MAX_TEXTS` are looked at.
        name: what the data calls the language, e.g. `ja` or `ja_JP`. It decides only for texts in Han characters.

    Returns:
        A key of `NAMES`; empty for all others.
    """
    letters = 0
    count = dict.fromkeys(_OF_SCRIPT, 0)
    for text in itertools.islice(texts, MAX_TEXTS):
        letters += len(_LETTER.findall(text))
        for language, script in _OF_SCRIPT.items():
            count[language] += len(script.findall(text))
    return _decide(count, letters, name)


def _decide(count: Dict[str, int], letters: int, name: str) -> str:
    written = count["zh"] + count["ja"]
    if written and written >= _SHARE * letters:
        return "ja" if count["ja"] >= _KANA_SHARE * written or re.match(r"(?i)ja(\W|_|$)", name) else "zh"
    others = {language: number for language, number in count.items() if language not in ("zh", "ja")}
    most = max(others, key=others.__getitem__)
    return most if others[most] and others[most] >= _SHARE * letters else ""


def is_unspaced(text: str) -> bool:
    """Returns True if most letters of a text belong to a script without spaces between words."""
    return 2 * len(_UNSPACED.findall(text)) > len(_LETTER.findall(text))


def split_units(text: str) -> List[str]:
    """Returns the characters of scripts without spaces, and the words between spaces of all others."""
    return _UNITS.findall(text)
