"""The language reference of Python behind `help()` as default data, in paragraphs and by chapter."""

from __future__ import annotations

import re
from typing import Dict, List, Tuple

from mxtrain.text.python_documentation import topics

CHAPTERS: Dict[str, str] = {
    "statements": (
        "compound async try with function class for while if else assignment augassign raise import return assert "
        "break continue del global nonlocal pass yield exprlists"
    ),
    "data model": (
        "types specialnames attribute-access customization objects specialattrs callable-types numeric-types "
        "sequence-types bltin-null-object bltin-ellipsis-object bltin-type-objects typesmethods typesmodules"
    ),
    "expressions": (
        "comparisons binary unary power bitwise shifting booleans calls subscriptions slicings conversions lambda in "
        "operator-summary atom-identifiers atom-literals attribute-references lists dict truth"
    ),
    "lexical analysis": "identifiers id-classes strings integers floating imaginary numbers",
    "strings": "string-methods formatstrings",
    "containers": "typesseq typesseq-mutable typesmapping",
    "debugger": "debugger",
    "execution": "execmodel naming exceptions dynamic-features",
}
"""Chapter -> its topics."""

RULES = re.compile(r"[-=+|]{3,}")
"""Rules of tables, which are removed: they would be a tenth of all tokens."""
MIN_WORDS = 8
"""Shorter paragraphs, mostly headings, are left out."""


def paragraphs() -> Dict[str, List[str]]:
    """Returns the paragraphs of each topic, without line breaks."""
    return {
        topic: [
            words
            for words in (" ".join(RULES.sub(" ", part).split()) for part in re.split(r"\n\s*\n", text))
            if len(words.split()) >= MIN_WORDS
        ]
        for topic, text in topics().items()
    }


def by_chapter() -> List[Tuple[str, str]]:
    """Returns (paragraph, chapter) for each distinct paragraph, without paragraphs that occur in several chapters."""
    chapter_of = {topic: chapter for chapter, names in CHAPTERS.items() for topic in names.split()}
    chapters_of: Dict[str, set] = {}
    for topic, texts in paragraphs().items():
        for text in texts:
            if topic in chapter_of:
                chapters_of.setdefault(text, set()).add(chapter_of[topic])
    return [(text, next(iter(chapters))) for text, chapters in chapters_of.items() if len(chapters) == 1]


def documents() -> List[List[str]]:
    """Returns the paragraphs of each topic, without those of earlier topics."""
    seen: set = set()
    topic_paragraphs = []
    for texts in paragraphs().values():
        new_paragraphs = [text for text in dict.fromkeys(texts) if text not in seen]
        seen.update(new_paragraphs)
        if new_paragraphs:
            topic_paragraphs.append(new_paragraphs)
    return topic_paragraphs
