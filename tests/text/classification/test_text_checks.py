"""Problems that `data check` finds in tables of texts, plain text and GLUE's files."""

from __future__ import annotations

import os

import pytest

from mxtrain.errors import DataError
from mxtrain.text.classification.glue import Glue
from mxtrain.text.classification.text import MaskedText, Text

pytestmark = pytest.mark.usefixtures("own_cache")
LINES = ["sentence\tlabel", *(f"text number {n} of many\t{'good' if n % 2 else 'bad'}" for n in range(30))]


@pytest.fixture
def write(tmp_path):
    def write_lines(name, lines, encoding="utf-8"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
        return str(path)

    return write_lines


def test_a_clean_table(write, check):
    assert check(Text(train=write("train.tsv", LINES))) == []
    assert sum(check.census.num_samples.values()) == 30
    assert check.census.tables()[0].rows[0][0] == "bad"


def test_every_row_that_is_wrong_is_named(write, tmp_path, check):
    lines = list(LINES)
    lines[3] = "no label at all"
    lines[5] += "\tone more"
    lines[7] = "  \tgood"
    lines[9] = lines[8]
    train = write("train.tsv", lines)
    content = (tmp_path / "train.tsv").read_bytes()
    content = content.replace(b"number 11 of", b"number \xe9 of").replace(b"number 19 of", b"number \xff of")
    (tmp_path / "train.tsv").write_bytes(content)
    val = write("val.tsv", [*LINES[:1], "a text of its own\tgod", "another\tbad", lines[25], "one more\tnone"])
    assert check(Text(train=train, val=val, test_fraction=0.0)) == [
        ("undecodable_text", "train.tsv", 13),
        ("undecodable_text", "train.tsv", 21),
        ("short_row", "train.tsv", 4),
        ("long_row", "train.tsv", 6),
        ("unknown_class", "val.tsv", 2),
        ("unknown_class", "val.tsv", 5),
        ("empty_text", "train.tsv", 8),
        ("duplicate", "train.tsv", 10),
        ("duplicate_across_splits", "val.tsv", 4),
    ]
    assert "Did you mean 'good'?" in check.problems[4].remedy
    assert check.problems[0].fact.endswith("line 13 is no UTF-8: it holds the byte 0xe9.")


def test_pairs_and_json_lines(write, check):
    rows = [f'{{"a": "left {n}", "b": "right {n}", "label": {n % 2}}}' for n in range(20)]
    rows[2] = '{"a": "left", "label": 1}'
    rows[4] = '{"a": "left", "b": null, "label": 1}'
    rows[6] = "{"
    rows[8] = '{"a": "left", "b": " ", "label": 1}'
    found = check(Text(train=write("t.jsonl", rows), sentence="a", sentence2="b", val_fraction=0.2))
    assert found == [
        ("short_row", "t.jsonl", 3),
        ("unreadable_row", "t.jsonl", 5),
        ("unreadable_row", "t.jsonl", 7),
        ("empty_text", "t.jsonl", 9),
    ]
    assert "the second text is empty" in check.problems[3].fact


def test_a_column_that_no_row_has_is_reported_once_for_each_file(write, check):
    other = ["text\tlabel", *LINES[1:]]
    assert check(Text(train=write("a.tsv", other), val=write("b.tsv", other))) == [
        ("cannot_open", "a.tsv", None),
        ("cannot_open", "b.tsv", None),
    ]
    assert "no column 'sentence'" in check.problems[0].fact
    assert check(Text(train=write("c.tsv", LINES[1:]), header=False, sentence=0, label=2)) == [
        ("cannot_open", "c.tsv", None)
    ]
    assert "line 1: it has 2 columns, so there is none for number 2, counted from 0." in check.problems[0].fact


def test_glue(write, tmp_path, check):
    lines = ["a\tb\tsentence1\tsentence2\tscore", *(f"{n}\tx\tleft {n}\tright {n}\t{n / 10}" for n in range(12))]
    lines[2] = "1\tx\tleft\tright\tmuch"
    lines[4] = "3\tx\tleft"  # as some published files have them: left out
    write("STS-B/train.tsv", lines)
    write("STS-B/dev.tsv", [lines[0], *(line.replace("left", "links") for line in lines[6:])])
    glue = Glue(root=str(tmp_path), task="stsb")
    assert check(glue) == [("short_row", "STS-B/train.tsv", 5), ("not_a_number", "STS-B/train.tsv", 3)]
    assert check.census.num_samples == {"train": 10, "val": 7} and check.census.tables() == []


PARAGRAPHS = [f"Paragraph {n} has enough words that nobody would write it twice." for n in range(40)]


def test_plain_text(write, tmp_path, check):
    first = write("texts/a.txt", "\n\n".join(PARAGRAPHS[:20]).split("\n"))
    write("texts/b.txt", ["\n", "* * *\n", "* * *\n", *(f"{text}\n" for text in PARAGRAPHS[20:])])
    assert check(MaskedText(train=str(tmp_path / "texts"))) == []
    write("texts/c.txt", ["", " "])
    write("texts/d.txt", ["A caf\xe9."], "latin-1")
    (tmp_path / "texts/e.txt").write_bytes("utf-16".encode("utf-16"))
    os.link(first, tmp_path / "texts/f.txt")
    val = write("val.txt", ["Its own paragraph.\n", PARAGRAPHS[25]])
    assert check(MaskedText(train=[str(tmp_path / "texts"), first], val=val)) == [
        ("listed_twice", "texts/f.txt", None),
        ("listed_twice", "texts/a.txt", None),
        ("empty_text", "texts/c.txt", None),
        ("undecodable_text", "texts/d.txt", 1),
        ("unreadable_file", "texts/e.txt", None),
        ("duplicate_across_splits", "val.txt", 3),
    ]
    assert "texts/b.txt, line 17 (train)" in check.problems[-1].fact


def test_a_text_without_empty_lines_is_one_paragraph(tmp_path, own_cache):
    (tmp_path / "a.txt").write_text("one line\nanother line\n" * 9)
    with pytest.raises(DataError, match="is a single paragraph.*An empty line ends a paragraph"):
        MaskedText(train=str(tmp_path / "a.txt")).open()
