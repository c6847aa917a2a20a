"""Random streams of texts."""

from __future__ import annotations

from mxtrain.text.language_modeling.sampling import NEXT_TOKEN
from mxtrain.types import NamedInt


class TextDraw(NamedInt):
    """Random streams of texts; see `mxtrain.data.loading.randomness.Draw`."""

    MASK_CHOICE = 16
    MASK_KIND = 17
    MASK_TOKEN = 18
    TEXT_BEGIN = 703
    """Start of running text in an epoch."""
    NEXT_TOKEN = NEXT_TOKEN
    """Choice of the next token."""
    PHRASE = 705
    """And 4 above it: which phrases are made."""
    REPORT = 711
    """Choices in generated reports."""
    VOCABULARY = 710
    """Texts from which a vocabulary is built."""
    NUMBER = 711
    """Order of the numbers in words."""
