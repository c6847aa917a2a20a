"""Damaged data: tables of texts, folders of texts, texts to predict on, vocabularies."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Callable, List

from damage import Case, damage, damage_file, kind, linked_to, piped, read_splits

from mxtrain.text.classification.text import MaskedText, Text
from mxtrain.text.tokenizing.kinds import TextsInMemory, TokenizerSettings, train_tokenizer

TSV, CSV, JSONL = "TSV", "CSV", "JSONL"
TABLES = (TSV, CSV, JSONL)
TEXTS, LINES, VOCAB = "folder of texts", "texts to predict on", "vocabulary"
PACKED, LIBRARY = "packed CSV", "tokenizer.json"

CASES: List[Case] = [
    *(Case(kind, "it is in Latin-1", "line 3 is no UTF-8: it holds the byte 0xe9") for kind in TABLES),
    *(Case(kind, "it is in UTF-16", "is in UTF-16, not UTF-8") for kind in TABLES),
    *(Case(kind, "it is a named pipe", "is a named pipe, and only regular files are read") for kind in TABLES),
    *(Case(kind, "it is a link to /dev/zero", "is a device, and only regular files are read") for kind in TABLES),
    *(Case(kind, "it may not be read", "cannot be read: Permission denied") for kind in TABLES),
    Case(TSV, "a row is short", "train.tsv, line 5: it has 1 column, so there is none for 'label'"),
    Case(CSV, "a row is short", "train.csv, line 5: it has 1 column, so there is none for 'label'"),
    Case(CSV, "a quote is not closed", "train.csv, line 4 begins a row that cannot be read"),
    Case(JSONL, "a text is null", "train.jsonl, line 4: 'sentence' is null, which is no text"),
    Case(JSONL, "a label is null", "train.jsonl, line 4: 'label' is null, which is no text"),
    Case(JSONL, "a text is a list", "train.jsonl, line 4: 'sentence' is a list or an object, which is no text"),
    Case(JSONL, "a text has a lone surrogate", "line 4: 'sentence' holds half a character, \\ud800"),
    Case(JSONL, "a line is no object", "train.jsonl, line 4 is no JSON object"),
    Case(JSONL, "a line is nested 100,000 deep", "train.jsonl, line 4 is no JSON object"),
    Case(JSONL, "a line is cut off", "train.jsonl, line 4 is no JSON object"),
    Case(TEXTS, "a text is in Latin-1", "b.txt, line 1 is no UTF-8: it holds the byte 0xe9"),
    Case(TEXTS, "a text is a named pipe", "b.txt' is a named pipe"),
    Case(TEXTS, "a folder may not be read", "more' cannot be read: Permission denied"),
    Case(LINES, "it is in UTF-16", "is in UTF-16, not UTF-8"),
    Case(LINES, "it is a folder", "new.txt' is a folder, and only regular files are read"),
    Case(VOCAB, "it is in Latin-1", "is no UTF-8: it holds the byte 0xe9"),
    Case(VOCAB, "its tokens are no list", "idx_to_token must be a list of texts"),
    Case(PACKED, "it is cut off", "train.csv.gz is damaged: it cannot be unpacked"),
    Case(PACKED, "it is not packed", "train.csv.gz is damaged: it cannot be unpacked (Not a gzipped file"),
    Case(LIBRARY, "it is cut off", "is no vocabulary (no tokenizer.json: "),
    Case(LIBRARY, "it is something else", "is no vocabulary (no tokenizer.json: "),
]


def write_table(path: Path) -> None:
    """Twenty rows from line 2 on, of JSONL from line 1."""
    rows = [(f"text {number} caf\u00e9", "good" if number % 2 else "bad") for number in range(20)]
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(("sentence", "label"), row)), ensure_ascii=False) + "\n" for row in rows]
        path.write_text("".join(lines), encoding="utf-8")
        return
    mark = "\t" if path.suffix == ".tsv" else ","
    path.write_text("".join(mark.join(row) + "\n" for row in [("sentence", "label"), *rows]), encoding="utf-8")


def _table(ending: str) -> Callable[[Path], Callable[[], None]]:
    def make(folder: Path) -> Callable[[], None]:
        write_table(folder / f"train.{ending}")
        return read_splits(Text(train=str(folder / f"train.{ending}")))

    return make


for _kind in TABLES:
    kind(_kind)(_table(_kind.lower()))


@kind(TEXTS)
def _texts(folder: Path) -> Callable[[], None]:
    (folder / "texts" / "more").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "more/c.txt"):
        (folder / "texts" / name).write_text("one two\n\nthree four\n\nfive six\n\nseven eight\n")
    return read_splits(MaskedText(train=str(folder / "texts")))


@kind(LINES)
def _lines(folder: Path) -> Callable[[], None]:
    (folder / "new.txt").write_text("one\ntwo\n")

    def read() -> None:
        Text().read_unlabelled(str(folder / "new.txt"))

    return read


@kind(VOCAB)
def _vocab(folder: Path) -> Callable[[], None]:
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\n")

    def read() -> None:
        Text(vocab=str(folder / "vocab.txt")).tokenizer_config(TextsInMemory([]))

    return read


@kind(PACKED)
def _packed(folder: Path) -> Callable[[], None]:
    write_table(folder / "train.csv")
    (folder / "train.csv.gz").write_bytes(gzip.compress((folder / "train.csv").read_bytes()))
    return read_splits(Text(train=str(folder / "train.csv.gz")))


@kind(LIBRARY)
def _library(folder: Path) -> Callable[[], None]:
    texts = TextsInMemory(["one two three four"] * 9)
    made = train_tokenizer(TokenizerSettings("bpe", size=300), texts)
    (folder / "tokenizer.json").write_text(str(made.to_json()["file"]), encoding="utf-8")

    def read() -> None:
        Text(vocab=str(folder / "tokenizer.json")).tokenizer_config(texts)

    return read


@damage_file((PACKED, "train.csv.gz"), (LIBRARY, "tokenizer.json"), called="it is cut off")
def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@damage_file((PACKED, "train.csv.gz"), called="it is not packed")
def _not_packed(path: Path) -> None:
    path.write_bytes((path.parent / "train.csv").read_bytes())


@damage_file((LIBRARY, "tokenizer.json"), called="it is something else")
def _something_else(path: Path) -> None:
    path.write_text('{"version": "1.0", "model": {"type": "Pickle", "vocab": {}}}')


FILES = tuple((name, f"train.{name.lower()}") for name in TABLES)
B = (TEXTS, "texts/b.txt")


def replace_line(path: Path, number: int, line: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = line + b"\n"
    path.write_bytes(b"".join(lines))


@damage_file(*FILES, called="it is in Latin-1")
def _latin1(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].decode().encode("latin-1")
    path.write_bytes(b"".join(lines))


@damage_file(B, called="a text is in Latin-1")
@damage_file((VOCAB, "vocab.txt"), called="it is in Latin-1")
def _latin1_word(path: Path) -> None:
    path.write_bytes(b"caf\xe9\n" + path.read_bytes())


@damage_file(*FILES, (LINES, "new.txt"), called="it is in UTF-16")
def _utf16(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-16")


damage_file(*FILES, called="it is a named pipe")(piped)
damage_file(B, called="a text is a named pipe")(piped)
damage_file(*FILES, called="it is a link to /dev/zero")(linked_to("/dev/zero"))


@damage_file(*FILES, called="it may not be read")
@damage_file((TEXTS, "texts/more"), called="a folder may not be read")
def _forbid(path: Path) -> None:
    path.chmod(0)


@damage_file((LINES, "new.txt"), called="it is a folder")
def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@damage_file((TSV, "train.tsv"), (CSV, "train.csv"), called="a row is short")
def _short(path: Path) -> None:
    replace_line(path, 5, b"alone")


@damage_file((CSV, "train.csv"), called="a quote is not closed")
def _quote(path: Path) -> None:
    replace_line(path, 4, b'"open,good')


for _called, _line in {
    "a text is null": b'{"sentence": null, "label": "good"}',
    "a label is null": b'{"sentence": "one", "label": null}',
    "a text is a list": b'{"sentence": ["one"], "label": "good"}',
    "a text has a lone surrogate": b'{"sentence": "one \\ud800", "label": "good"}',
    "a line is no object": b'"one"',
    "a line is nested 100,000 deep": b'{"sentence": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a line is cut off": b'{"sentence": "one", "la',
}.items():
    damage_file((JSONL, "train.jsonl"), called=_called)(lambda path, line=_line: replace_line(path, 4, line))


@damage(VOCAB, called="its tokens are no list")
def _no_list(folder: Path) -> None:
    (folder / "vocab.txt").write_text(json.dumps({"idx_to_token": 5}))
