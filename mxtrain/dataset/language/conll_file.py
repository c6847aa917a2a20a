"""Files of words and tags in columns, as those of CoNLL: a word a line, an empty line between sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxtrain.dataset.checking.problems import EMPTY_TEXT, SHORT_ROW, STRICT, DataPlace, Findings, Problem
from mxtrain.dataset.loading.text_stream import open_text

ENDLESS_SENTENCE = "endless_sentence"
"""All words of a file in one sentence."""
_MOST_WORDS = 200
"""Of a file that is one sentence; longer ones of a language are rare."""
DOCUMENT = "-DOCSTART-"
"""The word of a line that begins a document, in the files of CoNLL 2003."""


class ColumnLayout(NamedTuple):
    """Where words and tags stand in a line; columns count from 0, or with -1 from the last.

    Attributes:
        word: the column of the word.
        tag: the column of the tag; None = words alone are read.
        comment: lines that begin so are left out; empty: none.
    """

    word: int = 0
    tag: Optional[int] = -1
    comment: str = ""


@dataclass
class TaggedWords:
    """Sentences with a tag for each word.

    Attributes:
        sentences: words.
        tags: of these words, as they are written.
        lines: the line of each word, from 1; empty where they come from no file.
        file: that they come from.
    """

    sentences: List[List[str]] = field(default_factory=list)
    tags: List[List[str]] = field(default_factory=list)
    lines: List[List[int]] = field(default_factory=list)
    file: str = ""

    def __len__(self) -> int:
        """Number of sentences."""
        return len(self.sentences)

    def take(self, indices: Sequence[int]) -> TaggedWords:
        """Some of the sentences; those beyond the end are left out."""
        kept = [index for index in indices if index < len(self)]
        sentences = [self.sentences[index] for index in kept]
        tags = [self.tags[index] for index in kept] if self.tags else []
        return TaggedWords(sentences, tags, [self.lines[index] for index in kept] if self.lines else [], self.file)


def read_conll(path: str, layout: ColumnLayout, findings: Findings = STRICT) -> TaggedWords:
    """The sentences of a file.

    Raises:
        DataError: it cannot be read, or a line has too few columns.
    """
    found = TaggedWords(file=path)
    for rows in _sentences(path, layout, findings):
        found.sentences.append([word for _, word, _ in rows])
        found.tags.append([tag for _, _, tag in rows])
        found.lines.append([line for line, _, _ in rows])
    for problem in endless_sentence(found):
        findings.remark(problem)
    return found


def endless_sentence(words: TaggedWords) -> List[Problem]:
    """The problem of a file that is one long sentence, for it has no empty line between words; none of any other."""
    if not words.file or len(words) != 1 or len(words.sentences[0]) <= _MOST_WORDS:
        return []
    place = DataPlace(words.file)
    fact = f"{place} has no empty line between words: its {len(words.sentences[0]):,} words are one sentence."
    return [Problem(ENDLESS_SENTENCE, place, fact, "It is divided wherever dataset.max_length tokens are full: put an "
                    "empty line between sentences.")]  # fmt: skip


def _sentences(path: str, layout: ColumnLayout, findings: Findings) -> Iterator[List[Tuple[int, str, str]]]:
    """(line, word, tag) of the words of each sentence."""
    columns = [column for column in (layout.word, layout.tag) if column is not None]
    least = max(*(column + 1 if column >= 0 else -column for column in columns), len(set(columns)))
    rows: List[Tuple[int, str, str]] = []
    follows_words = True  # or begins the file, or ends a document's line
    with open_text(path, None, findings) as lines:
        for number, text in enumerate(lines, start=1):
            if layout.comment and text.startswith(layout.comment):
                continue
            row = text.rstrip("\n").split("\t") if "\t" in text else text.split()
            if not any(map(str.strip, row)):
                if not follows_words:
                    place = DataPlace(path, number)
                    fact = f"{place} ends an empty sentence: no words stand before it."
                    findings.remark(Problem(EMPTY_TEXT, place, fact, "Leave one empty line between sentences."))
                if rows:
                    yield rows
                rows, follows_words = [], False
                continue
            follows_words = True
            if row[layout.word if len(row) > layout.word else 0] == DOCUMENT:
                continue
            if len(row) < least:
                findings.refuse(_too_short(DataPlace(path, number), len(row), least))
                continue
            word = row[layout.word].strip()
            if not word:
                place = DataPlace(path, number)
                findings.refuse(Problem(EMPTY_TEXT, place, f"{place}: the word is empty.", "Complete or remove it."))
                continue
            if not rows and not least_is_enough(layout):
                least = max(least, len(row))  # columns that count from the last are those of every line
            rows.append((number, word, "" if layout.tag is None else row[layout.tag].strip()))
    if rows:
        yield rows


def least_is_enough(layout: ColumnLayout) -> bool:
    """Whether a line may have more columns than another without its columns being others."""
    return all(column is None or column >= 0 for column in (layout.word, layout.tag))


def _too_short(place: DataPlace, count: int, least: int) -> Problem:
    columns = "1 column" if count == 1 else f"{count} columns"
    remedy = "White space or tabs divide columns. Complete the line, or name them by dataset.word and dataset.tag."
    return Problem(SHORT_ROW, place, f"{place} has {columns}, and there must be {least}.", remedy)
