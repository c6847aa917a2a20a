"""Files of words and tags in columns, in the format of CoNLL: one word per line, an empty line between sentences."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxtrain.data.checking.problems import EMPTY_TEXT, SHORT_ROW, STRICT, DataLocation, Findings, Problem
from mxtrain.data.loading.text_stream import ending_of, open_text
from mxtrain.data.table.quoted_cells import has_doubled_quotes
from mxtrain.errors import DataError
from mxtrain.files.text_lines import BLANKS, split_words

log = logging.getLogger(__name__)

ENDLESS_SENTENCE = "endless_sentence"
"""Kind of problem: all words of a file are in one sentence."""
_MAX_WORDS = 200
"""Number of words from which a file with a single sentence seems to lack empty lines."""
DOCUMENT = "-DOCSTART-"
"""The word of a line that begins a document, in the files of CoNLL 2003."""
CONLLU = (".conllu", ".conllup")
"""Extensions of CoNLL-U files, which have comments, and ids in the first column."""
_CONLLU_COLUMNS = 10
_NOT_A_WORD = re.compile(r"[0-9]+(-|\.)[0-9]+")
"""Ids of CoNLL-U that are no syntactic words: 3-4 of a token of several words, 5.1 of an empty node."""
_COMMENTS = (
    "#begin document",
    "#end document",
    "# sent_id = ",
    "# text = ",
    "# newdoc",
    "# newpar",
    "# global.columns = ",
)
"""Prefixes of lines around documents in CoNLL 2011 and 2012, and around sentences in CoNLL-U."""


class ColumnLayout(NamedTuple):
    """Columns of words and tags in a line, counted from 0, or from the last with -1.

    Attributes:
        word: column of the word.
        tag: column of the tag; None = only words are read.
        comment: prefix of lines that are skipped; empty = none.
    """

    word: int = 0
    tag: Optional[int] = -1
    comment: str = ""


@dataclass
class TaggedWords:
    """Sentences with a tag for each word.

    Attributes:
        sentences: words of each sentence.
        tags: tags of these words, as in the file.
        lines: line of each word, from 1; empty without a file.
        files: path of the file of each sentence; empty without a file.
    """

    sentences: List[List[str]] = field(default_factory=list)
    tags: List[List[str]] = field(default_factory=list)
    lines: List[List[int]] = field(default_factory=list)
    files: List[str] = field(default_factory=list)

    def __len__(self) -> int:
        """Returns the number of sentences."""
        return len(self.sentences)

    def take(self, indices: Sequence[int]) -> TaggedWords:
        """Returns the sentences with these indices; indices beyond the end are ignored."""
        kept = [index for index in indices if index < len(self)]
        sentences = [self.sentences[index] for index in kept]
        tags = [self.tags[index] for index in kept] if self.tags else []
        lines = [self.lines[index] for index in kept] if self.lines else []
        return TaggedWords(sentences, tags, lines, [self.files[index] for index in kept] if self.files else [])

    def add(self, other: TaggedWords) -> None:
        """Appends the sentences of another file."""
        self.sentences += other.sentences
        self.tags += other.tags
        self.lines += other.lines
        self.files += other.files


def read_conll(path: str, layout: ColumnLayout, findings: Findings = STRICT) -> TaggedWords:
    """Returns the sentences of a file.

    Raises:
        DataError: it cannot be read, or a line has too few columns.
    """
    words = TaggedWords()
    for rows in _sentences(path, layout, findings):
        words.sentences.append([word for _, word, _ in rows])
        words.tags.append([tag for _, _, tag in rows])
        words.lines.append([line for line, _, _ in rows])
        words.files.append(path)
    for problem in endless_sentence(words):
        findings.remark(problem)
    return words


def endless_sentence(words: TaggedWords) -> List[Problem]:
    """Returns a problem if a file is one long sentence because it has no empty lines, otherwise none."""
    if not words.files or len(words) != 1 or len(words.sentences[0]) <= _MAX_WORDS:
        return []
    location = DataLocation(words.files[0])
    fact = f"{location} has no empty line between words: its {len(words.sentences[0]):,} words are one sentence."
    return [
        Problem(
            ENDLESS_SENTENCE,
            location,
            fact,
            "It is divided wherever dataset.max_length tokens are full: put an empty line between sentences.",
        )
    ]


def _sentences(path: str, layout: ColumnLayout, findings: Findings) -> Iterator[List[Tuple[int, str, str]]]:
    """Yields (line, word, tag) for the words of each sentence."""
    columns = [column for column in (layout.word, layout.tag) if column is not None]
    # Each column must exist, counted from either end; columns 0 and -1 are two columns, so one cell is not enough.
    min_columns = max(*(column + 1 if column >= 0 else -column for column in columns), len(set(columns)))
    rows: List[Tuple[int, str, str]] = []
    has_warned = False
    follows_words = True  # False after an empty line, until the next line with content
    is_conllu = ending_of(path) in CONLLU
    if is_conllu and layout.word == 0:
        raise DataError(
            f"{path} is CoNLL-U by its name, whose first column has ids of words, not words. Type "
            "dataset.word=1, and dataset.tag=3 for parts of speech."
        )
    comments = (*_COMMENTS, *filter(None, (layout.comment, "#" if is_conllu else "")))
    with open_text(path, None, findings) as lines:
        for number, text in enumerate(lines, start=1):
            if text.startswith(comments):
                continue
            row = split_columns(text)
            if not row:
                if not follows_words:
                    location = DataLocation(path, number)
                    fact = f"{location} ends an empty sentence: no words precede it."
                    findings.remark(Problem(EMPTY_TEXT, location, fact, "Leave one empty line between sentences."))
                if rows:
                    yield rows
                rows, follows_words = [], False
                continue
            follows_words = True
            if DOCUMENT in (row[0], row[layout.word] if 0 <= layout.word < len(row) else ""):
                if rows:
                    yield rows
                rows = []
                continue
            is_conllu_row = is_conllu or (len(row) == _CONLLU_COLUMNS and "\t" in text)
            if layout.word and is_conllu_row and _NOT_A_WORD.fullmatch(row[0]):
                continue
            if len(row) < min_columns or not row[layout.word]:
                findings.refuse(_row_problem(DataLocation(path, number), row, min_columns, text.startswith("#")))
                continue
            word = row[layout.word]
            if not has_warned and has_doubled_quotes(word):
                has_warned = True
                log.warning(
                    "%s: the quotes of the word %.40s are read as characters, for these files have no quoting. "
                    "In pandas, type quoting=csv.QUOTE_NONE.",
                    DataLocation(path, number),
                    word,
                )
            if not rows and not has_fixed_columns(layout):
                min_columns = max(min_columns, len(row))  # negative column indices must be valid on every line
            rows.append((number, word, "" if layout.tag is None else row[layout.tag]))
    if rows:
        yield rows


def has_fixed_columns(layout: ColumnLayout) -> bool:
    """Returns True if extra columns of a line do not shift the columns that are read."""
    return all(column is None or column >= 0 for column in (layout.word, layout.tag))


def split_columns(text: str) -> List[str]:
    """Returns the columns of a line, which tabs divide, or spaces if it has no tab; none of an empty line."""
    if "\t" not in text:
        return split_words(text)
    columns = [column.strip(BLANKS) for column in text.split("\t")]
    return columns if any(columns) else []


def _row_problem(location: DataLocation, row: Sequence[str], min_columns: int, is_comment: bool) -> Problem:
    """Returns the problem of a line with too few columns, or with an empty word."""
    if len(row) >= min_columns:
        return Problem(EMPTY_TEXT, location, f"{location}: the word is empty.", "Complete or remove it.")
    columns = "1 column" if len(row) == 1 else f"{len(row)} columns"
    remedy = "Spaces or tabs divide columns. Complete the line, or name them by dataset.word and dataset.tag."
    if is_comment:
        remedy = 'If it is a comment, type dataset.comment="#".'
    return Problem(SHORT_ROW, location, f"{location} has {columns}, and there must be {min_columns}.", remedy)
