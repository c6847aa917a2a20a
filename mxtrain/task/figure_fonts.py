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
"""Prefixes of file names of preferred fonts, best first: plain letters before handwriting."""
UNFIT = ("emoji", "symbol", "math", "bold", "italic", "oblique", "condensed", "mono")


@functools.cache
def font_of(name: str) -> Optional[str]:
    """Returns the file of a font that has every letter of a name; "" for Pillow's default font, None if none has."""
    letters = frozenset(ord(letter) for letter in name if letter.isprintable() and not letter.isspace())
    if all(letter < 128 for letter in letters):
        return ""
    required = letters | {ord("l"), ord("p")}  # by which matplotlib measures a line
    return next((path for path in font_files() if required <= letters_in(path)), None)


def drawable(names: Sequence[str]) -> List[str]:
    """Replaces names that no font on this machine can draw by their numbers, with a warning for the first."""
    drawable_names = [
        str(name) if font_of(str(name)) is not None else f"#{number}" for number, name in enumerate(names)
    ]
    missing = next((str(name) for name in names if font_of(str(name)) is None), None)
    if missing is not None:
        warn_missing_letters(missing)
    return drawable_names


@functools.cache
def warn_missing_letters(name: str) -> None:
    """Warns that a class is drawn as a number, because no font has the letters of its name."""
    log.warning(
        "no font on this machine has the letters of '%s': figures show its number instead. "
        "Install one, e.g. apt-get install fonts-noto-cjk",
        name,
    )


@functools.lru_cache(maxsize=1)
def font_files() -> List[str]:
    """Returns the font files of this machine, best first."""
    import matplotlib
    from matplotlib import font_manager

    default_font = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")

    def rank(path: str) -> tuple:
        file = Path(path).name.lower().replace("-", "").replace("_", "")
        place = next((place for place, name in enumerate(PREFERRED) if file.startswith(name)), len(PREFERRED))
        return any(word in file for word in UNFIT), place, path

    return [default_font, *sorted(font_manager.findSystemFonts(), key=rank)]


@functools.cache
def letters_in(path: str) -> FrozenSet[int]:
    """Returns the code points that a font file has glyphs for; none if it is not a font that matplotlib can draw."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(path).get_charmap())
    except (RuntimeError, OSError):
        return frozenset()
