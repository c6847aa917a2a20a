"""Converts the tags of sentences to one scheme, and finds unknown tags and impossible sequences."""

from __future__ import annotations

from typing import Collection, Iterator, List, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import UNKNOWN_CLASS, DataLocation, Findings, Problem
from mxtrain.data.table.columns import location_of as row_location
from mxtrain.errors import did_you_mean
from mxtrain.text.token_classification.conll_file import TaggedWords
from mxtrain.text.token_classification.tags import (
    OUT,
    TagCodes,
    are_brackets,
    bio_of_brackets,
    detect_scheme,
    find_entities,
    find_impossible,
    has_type,
    is_plain,
    parse_tag,
    write_entities,
    write_tag,
)

TAG_ORDER = "tag_order"
"""Kind of problem: a tag that cannot follow the previous one."""


def unify_scheme(
    words: TaggedWords, scheme: str, repair: bool, findings: Findings, names: Sequence[str] = ()
) -> Tuple[TaggedWords, str]:
    """Converts the tags of sentences to bio, bioes or plain, and skips sentences with problems.

    Args:
        words: sentences with tags as in the file.
        scheme: scheme of the tags; auto = detect it.
        repair: True to read tags that cannot follow each other as conlleval does.
        findings: collects unknown and impossible tags.
        names: allowed tags; empty = any.

    Returns:
        The converted sentences, and the scheme of the given tags.
    """
    all_tags = list(dict.fromkeys(tag for tags in words.tags for tag in tags))
    if scheme == "brackets" or (scheme == "auto" and are_brackets(all_tags)):
        return _known(_of_brackets(words, findings), names, findings), "brackets"
    if scheme == "plain" or (scheme == "auto" and is_plain(all_tags)):
        return _known(words, names, findings), "plain"
    words = _parsed(words, findings)
    sentence_W = np.repeat(np.arange(len(words)), list(map(len, words.tags)))
    tag_W = [tag for tags in words.tags for tag in tags]
    codes = TagCodes(list(dict.fromkeys(tag_W)))
    number = {tag: code for tag, code in zip(dict.fromkeys(tag_W), codes.code_K.tolist())}
    code_W = np.array([number[tag] for tag in tag_W], np.int64)
    if scheme == "auto":
        scheme = detect_scheme(tag_W, code_W, sentence_W)
    written = "bioes" if scheme == "bioes" else "bio"
    has_order = scheme not in ("iob1", "ioe1")
    if has_order and not repair:
        wrong = find_impossible(code_W, sentence_W, scheme)
        findings.refuse(*_out_of_order(words, wrong, sentence_W, scheme))
        kept = np.setdiff1d(np.arange(len(words)), sentence_W[wrong])
        words = words.take(kept.tolist())
        is_kept_W = np.isin(sentence_W, kept)
        code_W, sentence_W = code_W[is_kept_W], sentence_W[is_kept_W]
    if not has_order or repair or scheme == "ioe2":
        tag_W = write_entities(find_entities(code_W, sentence_W), len(code_W), codes.types, written)
        begins = np.concatenate([[0], np.cumsum(list(map(len, words.tags)))]).astype(int)
        tags = [tag_W[begin:end] for begin, end in zip(begins[:-1], begins[1:])]
        words = TaggedWords(words.sentences, tags, words.lines, words.files)
    return _known(words, names, findings), scheme


def _of_brackets(words: TaggedWords, findings: Findings) -> TaggedWords:
    """Converts brackets to bio, and skips sentences whose brackets do not match."""
    kept, tags = [], []
    for index, brackets in enumerate(words.tags):
        bio, wrong = bio_of_brackets(brackets)
        if wrong is None:
            kept.append(index)
            tags.append(bio)
            continue
        location = location_of(words, index, wrong)
        fact = f"{location} has the tag '{brackets[wrong]}', which does not fit into the brackets of its sentence."
        remedy = (
            "Spans are written (PER* * *), one word alone (PER), and none is inside of another. Correct it, name "
            "another column by dataset.tag, or type dataset.scheme=plain where tags are names of their own."
        )
        findings.refuse(Problem(TAG_ORDER, location, fact, remedy))
    kept_words = words.take(kept)
    return TaggedWords(kept_words.sentences, tags, kept_words.lines, kept_words.files)


def _parsed(words: TaggedWords, findings: Findings) -> TaggedWords:
    """Normalizes the prefixes of tags, and skips sentences with tags that cannot be parsed."""
    standard_tag = {}
    distinct = list(dict.fromkeys(tag for tags in words.tags for tag in tags))
    have_types = any(map(has_type, distinct))
    for tag in distinct:
        try:
            parts = parse_tag(tag)
        except ValueError:
            continue
        # One file has tags with types, or letters alone: B beside B-PER is a mistake.
        if parts.type or parts.prefix == OUT or not have_types:
            standard_tag[tag] = write_tag(*parts)
    words = _without_unknown_tags(
        words,
        standard_tag,
        findings,
        "no O and no prefix, hyphen and type such as B-PER",
        "Correct it, or type dataset.scheme=plain where tags are names of their own.",
    )
    tags = [[standard_tag[tag] for tag in tags] for tags in words.tags]
    return TaggedWords(words.sentences, tags, words.lines, words.files)


def _known(words: TaggedWords, names: Sequence[str], findings: Findings) -> TaggedWords:
    """Returns the sentences whose tags are all among the names."""
    tag_list = ", ".join(list(names)[:12]) + (", ..." if len(names) > 12 else "")
    if not names:
        return words
    return _without_unknown_tags(words, names, findings, "not in the training sentences", f"Tags: {tag_list}.")


def _without_unknown_tags(
    words: TaggedWords, names: Collection[str], findings: Findings, reason: str, remedy: str
) -> TaggedWords:
    """Returns the sentences whose tags are all among the names; adds a problem for each other tag."""
    kept: List[int] = []
    for index, tags in enumerate(words.tags):
        wrong = [word for word, tag in enumerate(tags) if tag not in names]
        for word in wrong:
            location = location_of(words, index, word)
            hint = f"{did_you_mean(tags[word], list(names))} {remedy}".lstrip()
            fact = f"{location} has the tag '{tags[word]}', which is {reason}."
            findings.refuse(Problem(UNKNOWN_CLASS, location, fact, hint))
        if not wrong:
            kept.append(index)
    return words if len(kept) == len(words) else words.take(kept)


def location_of(words: TaggedWords, sentence: int, word: int) -> DataLocation:
    """Returns the source location of a word."""
    return (
        row_location(words.files[sentence], words.lines[sentence][word])
        if words.lines
        else DataLocation(record=sentence)
    )


def _out_of_order(words: TaggedWords, wrong: np.ndarray, sentence_W: np.ndarray, scheme: str) -> Iterator[Problem]:
    for word in wrong.tolist():
        sentence = int(sentence_W[word])
        position = word - int(np.searchsorted(sentence_W, sentence))
        tags, location = words.tags[sentence], location_of(words, sentence, position)
        context = f"follows '{tags[position - 1]}'" if position else "begins a sentence"
        if scheme == "ioe2":  # what follows a tag decides
            is_last = position == len(tags) - 1
            context = "ends a sentence" if is_last else f"is followed by '{tags[position + 1]}'"
        ends = " and ends it" if position == len(tags) - 1 and tags[position][0] in "BI" and scheme == "bioes" else ""
        fact = f"{location}: the tag '{tags[position]}' {context}{ends}, which cannot be with dataset.scheme={scheme}."
        remedy = "Correct it, or type dataset.repair_tags=true to read it as conlleval."
        yield Problem(TAG_ORDER, location, fact, remedy)
