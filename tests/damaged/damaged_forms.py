"""Damaged tables and lines of regression, forecasting, summarization and question answering, and word vectors."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import List

from damage import Case, Spoil, cut, damaged, emptied, in_latin1, in_utf16, kind_of_fuzz, replaced

NUMBERS, TARGETS, PARQUET = "table of numbers", "table with several targets", "Parquet of series"
SUMMARIES, QUESTIONS, ROWS = "documents and summaries", "questions of Hugging Face", "questions in Parquet"
GLOVE, WORD2VEC, BINARY, FASTTEXT = "GloVe", "word2vec in text", "word2vec", "fastText"

for _kind, _name in {
    NUMBERS: "table of numbers",
    TARGETS: "table with several targets",
    PARQUET: "series.parquet",
    SUMMARIES: "summaries",
    QUESTIONS: "questions.jsonl",
    ROWS: "questions.parquet",
    GLOVE: "word vectors, GloVe",
    WORD2VEC: "word vectors, text of word2vec",
    BINARY: "word vectors, word2vec",
    FASTTEXT: "word vectors, fastText",
}.items():
    kind_of_fuzz(_kind, _name)


def patched(position: int, form: str, value: float) -> Spoil:
    """Returns the damage that writes another number at a position."""

    def spoil(path: Path) -> None:
        content = bytearray(path.read_bytes())
        struct.pack_into(form, content, position, value)
        path.write_bytes(content)

    return spoil


CSV, LINES = "train.csv", "train.jsonl"
CASES: List[Case] = [
    damaged(
        NUMBERS, "it is cut off", CSV, cut(-8), "train.csv, line 31: it has 2 columns, so there is none for 'target'."
    ),
    damaged(NUMBERS, "it is empty", CSV, emptied, "train.csv is empty: there are no columns."),
    damaged(
        NUMBERS,
        "it is in UTF-16",
        CSV,
        in_utf16,
        "train.csv is in UTF-16, not UTF-8",
    ),
    damaged(
        NUMBERS,
        "a target is nan",
        CSV,
        replaced("\n1,0.5,3\n", "\n1,0.5,nan\n"),
        "train.csv, line 3: 'target' is 'nan', a missing number",
    ),
    damaged(
        NUMBERS,
        "a target is 1e400",
        CSV,
        replaced("\n1,0.5,3\n", "\n1,0.5,1e400\n"),
        "train.csv, line 3: 'target' is inf, no finite number",
    ),
    damaged(
        NUMBERS,
        "a feature is 1e400",
        CSV,
        replaced("\n1,0.5,3\n", "\n1e400,0.5,3\n"),
        "train.csv, line 3: 'size' is inf, no finite number",
    ),
    damaged(
        NUMBERS,
        "a feature is a word",
        CSV,
        replaced("\n1,0.5,3\n", "\n1,old,3\n"),
        "train.csv, line 3: 'age' is 'old', no number",
    ),
    damaged(
        TARGETS, "it is cut off", CSV, cut(-9), "train.csv, line 31: it has 3 columns, so there is none for 'price'."
    ),
    damaged(TARGETS, "it is empty", CSV, emptied, "train.csv is empty: there are no columns."),
    damaged(
        TARGETS,
        "it is in UTF-16",
        CSV,
        in_utf16,
        "train.csv is in UTF-16, not UTF-8",
    ),
    damaged(
        TARGETS,
        "a target is missing",
        CSV,
        replaced(",3,0.5\n", ",,0.5\n"),
        "train.csv, line 3: 'price' is '', a missing number",
    ),
    damaged(
        TARGETS,
        "a target is 1e400",
        CSV,
        replaced(",3,0.5\n", ",1e400,0.5\n"),
        "train.csv, line 3: 'price' is inf, no finite number",
    ),
    damaged(
        TARGETS,
        "a date is none",
        CSV,
        replaced("2024-01-02", "2024-02-31"),
        "train.csv, line 3: 'day' is '2024-02-31', no date; allowed are dates as 2026-01-31, with a time as",
    ),
    damaged(
        PARQUET,
        "it is cut off",
        "a.parquet",
        cut(-20),
        "a.parquet cannot be read as Parquet",
    ),
    damaged(
        PARQUET,
        "it is empty",
        "a.parquet",
        emptied,
        "a.parquet cannot be read as Parquet",
    ),
    damaged(
        SUMMARIES,
        "it is cut off",
        LINES,
        cut(-9),
        "train.jsonl, line 30 is no JSON object: Unterminated string starting at.",
    ),
    damaged(SUMMARIES, "it is empty", LINES, emptied, "train.jsonl: there is no pair of texts."),
    damaged(
        SUMMARIES,
        "it is in Latin-1",
        LINES,
        in_latin1,
        "train.jsonl, line 1 is no UTF-8: it holds the byte 0xe9",
    ),
    damaged(
        SUMMARIES,
        "it is in UTF-16",
        LINES,
        in_utf16,
        "train.jsonl is in UTF-16, not UTF-8",
    ),
    damaged(
        SUMMARIES,
        "a summary is null",
        LINES,
        replaced('"short 1"', "null"),
        "train.jsonl, line 2: 'summary' is null, which is no text.",
    ),
    damaged(
        SUMMARIES,
        "a summary is a list",
        LINES,
        replaced('"short 1"', '["short"]'),
        "train.jsonl, line 2: 'summary' is a list or an object, which is no text.",
    ),
    damaged(
        SUMMARIES,
        "a summary is missing",
        LINES,
        replaced(', "summary": "short 1"', ""),
        "train.jsonl, line 2: there is no column 'summary'",
    ),
    damaged(
        QUESTIONS,
        "it is cut off",
        LINES,
        cut(-9),
        "train.jsonl is no file of SQuAD (line 12 is not JSON: Unterminated string starting at (line 1",
    ),
    damaged(
        QUESTIONS,
        "it is empty",
        LINES,
        emptied,
        "train.jsonl is no file of SQuAD (is not JSON: Expecting value (line 1, column 1)): it must be JSON",
    ),
    damaged(
        QUESTIONS,
        "it is in Latin-1",
        LINES,
        in_latin1,
        "train.jsonl, line 1 is no UTF-8: it holds the byte 0xe9",
    ),
    damaged(
        QUESTIONS,
        "it is in UTF-16",
        LINES,
        in_utf16,
        "train.jsonl is in UTF-16, not UTF-8",
    ),
    damaged(
        QUESTIONS,
        "an answer begins at -1",
        LINES,
        replaced("[3]", "[-1]"),
        "train.jsonl, line 1 (question '0'): the answer 'floor 0' is not at -1; 'On floo' is there",
    ),
    damaged(
        QUESTIONS,
        "an answer begins at 1e400",
        LINES,
        replaced("[3]", "[1e400]"),
        "train.jsonl is no file of SQuAD (holds the number 1e400, which is beyond the range of float64): it",
    ),
    damaged(
        QUESTIONS,
        "an answer begins elsewhere",
        LINES,
        replaced("[3]", "[4]"),
        "train.jsonl, line 1 (question '0'): the answer 'floor 0' is not at 4; 'loor 0 ' is there",
    ),
    damaged(
        QUESTIONS,
        "a context is null",
        LINES,
        replaced('"On floor 0 caf\u00e9 stands item 1 near box 3."', "null"),
        "train.jsonl is no file of SQuAD (a text was expected, not None, in line 1): it must be JSON with",
    ),
    damaged(
        ROWS,
        "it is cut off",
        "train.parquet",
        cut(-20),
        "train.parquet cannot be read as Parquet",
    ),
    damaged(
        ROWS,
        "it is empty",
        "train.parquet",
        emptied,
        "train.parquet cannot be read as Parquet",
    ),
    damaged(
        GLOVE,
        "it is cut off",
        "vectors",
        cut(-6),
        "vectors, line 3 has 2 numbers, and the vectors before have 3. The file is damaged: copy or download",
    ),
    damaged(GLOVE, "it is empty", "vectors", emptied, "vectors is empty."),
    damaged(GLOVE, "it is in UTF-16", "vectors", in_utf16, "vectors is no file of word vectors"),
    damaged(
        GLOVE,
        "a number is nan",
        "vectors",
        replaced("0.25", "nan"),
        "vectors, line 2 has a value that is no finite number of float32.",
    ),
    damaged(
        GLOVE,
        "a number is 1e400",
        "vectors",
        replaced("0.25", "1e400"),
        "vectors, line 2 has a value that is no finite number of float32.",
    ),
    damaged(WORD2VEC, "it is cut off", "vectors", cut(-17), "vectors has 2 vectors, and 3 by its first line"),
    damaged(
        WORD2VEC,
        "the first line says 4 vectors",
        "vectors",
        replaced("3 3\n", "4 3\n"),
        "vectors has 3 vectors, and 4 by its first line",
    ),
    damaged(
        BINARY,
        "it is cut off",
        "vectors",
        cut(-4),
        "vectors ends in vector 3, or is damaged there; by its first line it has 3",
    ),
    damaged(
        BINARY,
        "the first line says 1e9 vectors",
        "vectors",
        replaced("3 3\n", "1000000000 3\n"),
        "vectors ends in vector 4, or is damaged there; by its first line it has 1,000,000,000",
    ),
    damaged(
        BINARY,
        "a number is infinite",
        "vectors",
        patched(8, "<f", float("inf")),
        "vectors, vector 1 has a value that is not finite.",
    ),
    damaged(FASTTEXT, "it is cut off", "vectors", cut(-90), "vectors ends early"),
    damaged(FASTTEXT, "it ends in its dictionary", "vectors", cut(90), "vectors ends early"),
    damaged(FASTTEXT, "it says -3 words", "vectors", patched(64, "<i", -3), "vectors has a damaged dictionary"),
    damaged(
        FASTTEXT,
        "it is of version 13",
        "vectors",
        patched(4, "<i", 13),
        "vectors has version 13 of fastText's format, and versions up to 12 are read",
    ),
]
