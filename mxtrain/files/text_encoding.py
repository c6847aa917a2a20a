"""Guesses the encoding of text that is not UTF-8, to name it in messages."""

from __future__ import annotations

from typing import Callable, Dict, Iterable, List, Tuple

_Test = Callable[[int, int], bool]
_FREQUENT: Dict[str, _Test] = {
    "EUC-KR": lambda lead, second: 0xB0 <= lead <= 0xC8 and second >= 0xA1,
    "GB18030": lambda lead, second: (0xB0 <= lead <= 0xD7 or lead in (0xA1, 0xA3)) and second >= 0xA1,
    "BIG5": lambda lead, second: 0xA4 <= lead <= 0xC6 or lead == 0xA1,
    "SHIFT_JIS": lambda lead, second: (
        (lead == 0x82 and 0x9F <= second <= 0xF1)
        or (lead in (0x81, 0x83) and 0x40 <= second <= 0x96)
        or 0x88 <= lead <= 0x97
    ),
    "EUC-JP": lambda lead, second: second >= 0xA1 and (lead in (0xA1, 0xA4, 0xA5) or 0xB0 <= lead <= 0xCF),
}
"""Encoding -> function that returns True if two bytes are a frequent character in it. In other encodings the same bytes
are rare characters or none."""
_KANA = {"SHIFT_JIS": (0x82, 0x83), "EUC-JP": (0xA4, 0xA5)}
"""First bytes of kana, of which every Japanese text has many."""
_MIN_FREQUENT, _MIN_KANA, _MIN_HANGUL, _MIN_PAIRS = 0.8, 0.2, 0.97, 8


def guess_encoding(lines: Iterable[bytes]) -> str:
    """Returns the likely encoding of lines that are not UTF-8, as `iconv` names it.

    Returns:
        GB18030, BIG5, SHIFT_JIS, EUC-JP, EUC-KR, WINDOWS-1251 or WINDOWS-1252.
    """
    pairs: List[Tuple[int, int]] = []
    letters = high = 0
    for line in lines:
        position = 0
        while position < len(line):
            byte = line[position]
            letters += bytes([byte]).isalpha()
            high += byte >= 0xC0
            if byte < 0x80:
                position += 1
                continue
            pairs.append((byte, line[position + 1] if position + 1 < len(line) else 0))
            high += pairs[-1][1] >= 0xC0
            position += 2
    count = max(len(pairs), 1)
    score = {name: sum(test(*pair) for pair in pairs) / count for name, test in _FREQUENT.items()}
    for name, leads in _KANA.items():
        if sum(lead in leads for lead, _ in pairs) < _MIN_KANA * count:
            score[name] = 0.0
    # Frequent characters of Chinese begin with the same bytes as Korean, and with more.
    if score["EUC-KR"] < _MIN_HANGUL or count < _MIN_PAIRS:
        score["EUC-KR"] = 0.0
    best = max(score, key=score.__getitem__)  # the first one of equal scores
    if score["EUC-JP"] >= _MIN_FREQUENT:
        best = "EUC-JP"
    if score[best] >= _MIN_FREQUENT:
        return best
    return "WINDOWS-1251" if high > letters else "WINDOWS-1252"
