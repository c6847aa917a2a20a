"""Finds fonts that have the letters of a name, for images with names in any script.

Pillow's own font has plain English letters. Matplotlib carries DejaVu Sans, which has Latin, Greek, Cyrillic, Arabic
and Hebrew; Chinese, Japanese and Korean need a font of the system.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import FrozenSet, List, Optional, Sequence

log = logging.getLogger("mxtrain")

PREFERRED = ("notosanscjk", "sourcehansans", "notosans", "wqy", "droidsansfallback", "ipa", "nanum")
"""Fonts to take first, by the beginnings of their file names, best first: plain letters before handwriting."""
UNFIT = ("emoji", "symbol", "math", "bold", "italic", "oblique", "condensed", "mono")


@functools.cache
def font_of(name: str) -> Optional[str]:
    """Returns the file of a font that has every letter of a name; "" where Pillow's own has, None if there is none."""
    letters = frozenset(ord(letter) for letter in name if letter.isprintable() and not letter.isspace())
    if all(letter < 128 for letter in letters):
        return ""
    wanted = letters | {ord("l"), ord("p")}  # by which matplotlib measures a line
    return next((path for path in _candidates() if wanted <= _letters_in(path)), None)


def drawable(names: Sequence[str]) -> List[str]:
    """Returns the names as an image can show them: those with letters that no font here has become their numbers, which
    is said once."""
    shown = [str(name) if font_of(str(name)) is not None else f"#{number}" for number, name in enumerate(names)]
    missing = next((str(name) for name in names if font_of(str(name)) is None), None)
    if missing is not None:
        _say_what_is_missing(missing)
    return shown


@functools.cache
def _say_what_is_missing(name: str) -> None:
    log.warning(
        "no font on this machine has the letters of '%s': figures show its number instead. "
        "Install one, e.g. apt-get install fonts-noto-cjk", name,
    )  # fmt: skip


@functools.lru_cache(maxsize=1)
def _candidates() -> List[str]:
    """Font files, best first."""
    import matplotlib
    from matplotlib import font_manager

    own = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")

    def rank(path: str) -> tuple:
        file = Path(path).name.lower().replace("-", "").replace("_", "")
        place = next((place for place, name in enumerate(PREFERRED) if file.startswith(name)), len(PREFERRED))
        return any(word in file for word in UNFIT), place, path

    return [own, *sorted(font_manager.findSystemFonts(), key=rank)]


@functools.cache
def _letters_in(path: str) -> FrozenSet[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(path).get_charmap())
    except (RuntimeError, OSError):  # a file that is no font, or of a kind that matplotlib cannot draw
        return frozenset()
