"""Tags of words: schemes (BIO, IOB1, IOE1, IOE2, BIOES), and the entities that tags describe.

A tag is O, or a prefix and a type: B-PER. If all entities are of one type, as in word segmentation, a tag may be a
prefix alone: B. As numbers, a tag's code is 8 * type + prefix.

Legend: W words of all sentences one after the other, E entities, K tags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

OUTSIDE = "O"
PREFIXES = ("O", "B", "I", "E", "S")
OUT, BEGIN, INSIDE, END, SINGLE = range(5)
"""Prefixes as numbers: outside; beginning, inside and end of an entity; an entity of one word."""
PREFIX_CODES = 8
"""Factor of the type in the code of a tag, larger than any prefix."""
EQUIVALENTS = {"L": "E", "U": "S", "M": "I"}
"""Prefixes of the schemes BILOU and BMES, and their equivalents in BIOES."""


class TagParts(NamedTuple):
    """A tag in its parts: "B-PER" is (1, "PER"), "B" is (1, ""), and "O" (0, "")."""

    prefix: int
    type: str


def parse_tag(tag: str) -> TagParts:
    """Returns the parts of a tag.

    Raises:
        ValueError: it is neither O nor a prefix, alone or with a hyphen and a type.
    """
    if tag == OUTSIDE:
        return TagParts(OUT, "")
    prefix, hyphen, kind = tag.partition("-")
    # BILOU and BMES are BIOES in other letters, so entities stay the same.
    prefix = EQUIVALENTS.get(prefix, prefix)
    if bool(hyphen) != bool(kind) or prefix not in PREFIXES[1:]:
        raise ValueError(tag)
    return TagParts(PREFIXES.index(prefix), kind)


def write_tag(prefix: int, kind: str) -> str:
    """Returns the tag with this prefix and type; the inverse of `parse_tag`."""
    return f"{PREFIXES[prefix]}-{kind}" if kind else PREFIXES[prefix]


_BRACKETS = re.compile(r"(\([^()*\s]+)*\*?\)*")


def are_brackets(tags: Sequence[str]) -> bool:
    """Returns True if tags are brackets of spans, as in CoNLL 2005 and 2012: (PER* * *) or (PER), and * elsewhere.

    Tags of coreference, (0) and -, are brackets with numbers, and no spans with types.
    """
    return all(map(_BRACKETS.fullmatch, tags)) and any(tag[:1] == "(" and len(tag) > 1 for tag in tags)


def bio_of_brackets(tags: Sequence[str]) -> Tuple[List[str], Optional[int]]:
    """Converts the brackets of a sentence to BIO tags.

    Returns:
        The tags, and the index of the first invalid bracket: a span inside another one, an end without a beginning, or
        a span without an end; None if all are valid.
    """
    bio_tags: List[str] = []
    kind, begin = "", 0
    for position, tag in enumerate(tags):
        opened = tag.count("(")
        closed = tag.count(")")
        # More than one bracket, a span inside of another one, an end without a beginning, or no tag at all.
        if opened > 1 or closed > 1 or (opened and kind) or (closed and not (kind or opened)) or not tag:
            return bio_tags, position
        if opened:
            kind, begin = tag[1:].rstrip("*)"), position
        bio_tags.append(write_tag((BEGIN if opened else INSIDE) if kind else OUT, kind))
        if closed:
            kind = ""
    return bio_tags, begin if kind else None


def is_plain(tags: Sequence[str]) -> bool:
    """Returns True if tags are plain classes, such as parts of speech, rather than entity tags."""
    return not are_letters(tags) and not any(map(has_type, tags))


def are_letters(tags: Sequence[str]) -> bool:
    """Returns True if tags are prefixes alone, such as B, M, E and S: B or O, and at least one other prefix."""
    letters = {*PREFIXES, *EQUIVALENTS}
    return len(set(tags)) > 1 and letters.issuperset(tags) and ("B" in tags or OUTSIDE in tags)


def has_type(tag: str) -> bool:
    """Returns True if a tag is a prefix, a hyphen and a type."""
    try:
        return parse_tag(tag).type != ""
    except ValueError:
        return False


class TagCodes:
    """Integer codes of tags, from which entities are computed.

    Args:
        names: names of the K tags.
    """

    def __init__(self, names: Sequence[str]) -> None:
        parts = [parse_tag(name) for name in names]
        self.types: List[str] = sorted({part.type for part in parts if part.prefix != OUT})
        number = {name: index for index, name in enumerate(self.types)}
        self.code_K = np.array(
            [OUT if part.prefix == OUT else PREFIX_CODES * number[part.type] + part.prefix for part in parts], np.int64
        )


@dataclass(frozen=True)
class Entities:
    """Entities of sentences.

    Attributes:
        type_E: type number of each entity.
        begin_E, end_E: range [first word, end) of each entity, as indices into all words.
    """

    type_E: np.ndarray
    begin_E: np.ndarray
    end_E: np.ndarray

    def __len__(self) -> int:
        return len(self.type_E)

    def keys(self, num_words: int) -> np.ndarray:
        """Returns a number for each entity, which is equal for equal types and words."""
        return (self.type_E * (num_words + 1) + self.begin_E) * (num_words + 1) + self.end_E


def find_entities(code_W: np.ndarray, sentence_W: np.ndarray) -> Entities:
    """Returns the entities of tags, as conlleval and seqeval's default mode do.

    A tag that cannot continue the previous one begins a new entity.

    Args:
        code_W: code of each tag.
        sentence_W: sentence number of each word, ascending.
    """
    code_W = np.asarray(code_W, np.int64)
    is_new_W = np.diff(sentence_W, prepend=-1) != 0
    prefix_W, type_W = code_W % PREFIX_CODES, code_W // PREFIX_CODES
    before_W = np.where(is_new_W, OUT, np.concatenate([[OUT], prefix_W[:-1]]))[: len(code_W)]
    differs_W = np.where(before_W == OUT, True, type_W != np.concatenate([[-1], type_W[:-1]])[: len(code_W)])
    inside_W = prefix_W != OUT
    # As in conlleval, an entity also begins where a tag cannot go on with the one before.
    begins_W = inside_W & (np.isin(prefix_W, (BEGIN, SINGLE)) | np.isin(before_W, (OUT, END, SINGLE)) | differs_W)
    begin_E = np.flatnonzero(begins_W)
    # An entity ends at the next entity, at the next O, or at the end of its sentence.
    stops = np.flatnonzero(begins_W | ~inside_W | is_new_W)
    position_E = np.searchsorted(stops, begin_E, side="right")
    end_E = np.append(stops, len(code_W))[position_E]
    return Entities(type_W[begin_E], begin_E, end_E)


def write_entities(entities: Entities, num_words: int, types: Sequence[str], scheme: str) -> List[str]:
    """Returns the tags of words in a scheme, bio or bioes."""
    tags = [OUTSIDE] * num_words
    for kind, begin, end in zip(entities.type_E.tolist(), entities.begin_E.tolist(), entities.end_E.tolist()):
        for position in range(begin, end):
            prefix = BEGIN if position == begin else INSIDE
            if scheme == "bioes" and position == end - 1:
                prefix = SINGLE if position == begin else END
            tags[position] = write_tag(prefix, types[kind])
    return tags


def find_impossible(code_W: np.ndarray, sentence_W: np.ndarray, scheme: str) -> np.ndarray:
    """Returns the positions of tags that are impossible in a scheme: I-X in BIO that follows neither B-X nor I-X; in
    BIOES also tags that follow an entity without an end; in IOE2, I-X that neither I-X nor E-X follows, and B-X and
    S-X."""
    if not len(code_W):
        return np.zeros(0, np.int64)
    is_new_W = np.diff(sentence_W, prepend=-1) != 0
    prefix_W, type_W = code_W % PREFIX_CODES, code_W // PREFIX_CODES
    before_W = np.where(is_new_W, OUT, np.concatenate([[OUT], prefix_W[:-1]]))
    open_before_W = (before_W == BEGIN) | (before_W == INSIDE)
    same_W = open_before_W & (type_W == np.concatenate([[-1], type_W[:-1]]))
    if scheme == "bio":
        return np.flatnonzero((prefix_W == INSIDE) & ~same_W)
    continues_W = (prefix_W == INSIDE) | (prefix_W == END)
    if scheme == "ioe2":
        goes_on_W = np.append(same_W[1:] & continues_W[1:], False)
        return np.flatnonzero((prefix_W == BEGIN) | (prefix_W == SINGLE) | ((prefix_W == INSIDE) & ~goes_on_W))
    is_last_W = np.append(is_new_W[1:], True)
    left_open_W = is_last_W & ((prefix_W == BEGIN) | (prefix_W == INSIDE))
    return np.flatnonzero((continues_W & ~same_W) | (~continues_W & open_before_W) | left_open_W)


def detect_scheme(tag_W: Sequence[str], code_W: np.ndarray, sentence_W: np.ndarray) -> str:
    """Returns the scheme of tags.

    It is bioes if an entity has an end tag and any begins with B-X or S-X. If E-X occurs without these, it is ioe1 if
    E-X occurs only before a word of the same type, otherwise ioe2. It is iob1 if B-X occurs only after a word of the
    same type and some entity begins with I-X, otherwise bio.

    Args:
        tag_W: tags as in the file.
        code_W: code of each tag.
        sentence_W: sentence number of each word, ascending.
    """
    prefix_W, type_W = code_W % PREFIX_CODES, code_W // PREFIX_CODES
    is_new_W = np.diff(sentence_W, prepend=-1) != 0
    same_W = ~is_new_W & np.concatenate([[False], (type_W[1:] == type_W[:-1]) & (prefix_W[:-1] != OUT)])
    if np.isin(prefix_W, (END, SINGLE)).any():
        if np.isin(prefix_W, (BEGIN, SINGLE)).any():
            return "bioes"
        goes_on_W = np.append(same_W[1:] & (prefix_W[1:] != OUT), False)
        return "ioe1" if goes_on_W[prefix_W == END].all() else "ioe2"
    begins_with_i = ((prefix_W == INSIDE) & ~same_W).any()
    return "iob1" if begins_with_i and not ((prefix_W == BEGIN) & ~same_W).any() else "bio"


def count_entities(
    true_W: np.ndarray, predicted_W: np.ndarray, sentence_W: np.ndarray
) -> Dict[int, Tuple[int, int, int]]:
    """Counts entities by type: true positives, predicted ones and true ones."""
    true, predicted = find_entities(true_W, sentence_W), find_entities(predicted_W, sentence_W)
    count = len(true_W)
    is_hit_E = np.isin(predicted.keys(count), true.keys(count))
    return {
        int(kind): (
            int((is_hit_E & (predicted.type_E == kind)).sum()),
            int((predicted.type_E == kind).sum()),
            int((true.type_E == kind).sum()),
        )
        for kind in np.union1d(true.type_E, predicted.type_E)
    }
