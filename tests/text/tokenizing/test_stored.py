"""Texts of files as records: the same samples as from memory, prepared once, whatever the format."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import re

import numpy as np
import pytest

from mxtrain.data.checking.problems import STRICT
from mxtrain.data.corpus import preparing
from mxtrain.data.corpus.threads import map_in_order
from mxtrain.errors import DataError
from mxtrain.text import stored
from mxtrain.text.classification.glue import Glue
from mxtrain.text.classification.text import MaskedText, Text
from mxtrain.text.sources import LabelledTexts, PlainTexts
from mxtrain.text.stored import JoinedTexts, StoredColumn, prepare_tokens
from mxtrain.text.text_files import read_documents, stream_paragraphs
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.kinds import TextsInMemory
from mxtrain.text.tokenizing.wordpiece import SPECIAL, WordPiece

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("own_cache")
RNG = np.random.RandomState(0)
WORDS = "the cat sat on a mat caf\xe9 dogs ran".split()
CONFIG = TokenizerConfig(WordPiece((*SPECIAL, *WORDS, "##s"), lowercase=True), 14)


def words(most=30):
    return " ".join(RNG.choice(WORDS, RNG.randint(1, most)))


ROWS = [(words(), words(12), "good" if n % 3 else "bad") for n in range(60)]
NAMES = ("a", "b", "label")


def write_rows(path):
    ending = path.name.partition(".")[2].replace(".gz", "")
    if ending == "jsonl":
        text = "".join(json.dumps(dict(zip(NAMES, row))) + "\n" for row in ROWS)
    elif ending == "csv":
        text = "".join(",".join(f'"{cell}"' for cell in row) + "\r\n" for row in (NAMES, *ROWS))
    else:
        text = "".join("\t".join(row) + "\n" for row in (NAMES, *ROWS))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def samples(source, config=CONFIG):
    encoded = source.encode(config)
    arrays = encoded.padded(np.arange(len(encoded.length_N)), config.max_length)
    return [*(array.tolist() for array in arrays), encoded.label_N.tolist()]


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.jsonl", "t.csv.gz", "t.jsonl.gz"])
def test_tables_give_the_samples_that_texts_in_memory_give(tmp_path, name):
    dataset = Text(train=write_rows(tmp_path / name), sentence="a", sentence2="b", val_fraction=0.2, test_fraction=0.2)
    splits = dataset.open()
    parts = [splits.train, splits.val, splits.test]
    found = {pair: label for part in parts for pair, label in zip(part.pairs, part.label_N)}
    assert found == {(a, b): ["bad", "good"].index(label) for a, b, label in ROWS}
    assert [len(part) for part in parts] == [36, 12, 12]
    for part in (*parts, splits.train.take([5, 2, 99])):
        assert samples(part) == samples(LabelledTexts(list(part.pairs), part.label_N))
    row = ROWS.index((*splits.val.pairs[3], splits.class_names[splits.val.label_N[3]]))
    assert splits.val.locations[3].line == row + (1 if "jsonl" in name else 2)


def paragraphs(path):
    """Splits a whole file in memory; an empty line or one of spaces ends a paragraph."""
    lines = re.split("\r\n|\r|\n", path.read_bytes().decode())
    groups = itertools.groupby(enumerate(lines, start=1), key=lambda numbered: bool(numbered[1].strip()))
    filled = [list(group) for is_filled, group in groups if is_filled]
    return [(group[0][0], " ".join(" ".join(line for _, line in group).split())) for group in filled]


@pytest.mark.parametrize(
    "text",
    [
        "a\n\nb\nc\n\n\n\nd\n",
        "a\n\t\nb\r\n \r\nc\n\xa0\nd",
        " \n = A = \n \n b \n \n c \n",
        "\n\n a\n \nb\n\n\nc",
        "a\r\n\r\nb\rc\r\rd",
        "",
        " \n\n\t\n",
        "a\n\n \n\nb",
    ],
)
def test_paragraphs_as_a_stream(tmp_path, text):
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert list(stream_paragraphs(tmp_path / "a.txt")) == paragraphs(tmp_path / "a.txt")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts").mkdir()
    for name in "abc":
        (tmp_path / "texts" / f"{name}.txt").write_text("\n\n".join(words() for _ in range(20)))
    (tmp_path / "texts" / "d.txt.gz").write_bytes(gzip.compress("\n\n".join(words() for _ in range(9)).encode()))
    (tmp_path / "texts" / "e.txt").write_text("")
    return tmp_path / "texts"


def test_documents_give_the_samples_that_texts_in_memory_give(folder):
    splits = MaskedText(train=str(folder), val_fraction=0.2, test_fraction=0.1).open()
    for part in (splits.train, splits.val, splits.test, splits.train.take([0, 2])):
        assert samples(part) == samples(PlainTexts(part.documents)) and len(part) == len(part.documents)
    whole = read_documents(sorted(folder.glob("*.txt*")), STRICT)
    assert whole.num_paragraphs == 69 and len(whole) == 4
    assert samples(whole) == samples(PlainTexts(whole.documents))
    assert sum(part.num_paragraphs for part in (splits.train, splits.val, splits.test)) == 69
    assert str(whole.locations[21]).endswith("b.txt, line 3")


def test_second_start_uses_prepared_data(folder, monkeypatch):
    dataset = MaskedText(train=str(folder), vocab_size=100)
    first = dataset.open()
    config = first.build_tokenizer_config()
    expected = samples(first.train, config)
    monkeypatch.setattr(preparing, "_make", lambda *given: pytest.fail("it was prepared again"))
    again = dataset.open()
    assert again.build_tokenizer_config() == config and samples(again.train, config) == expected
    longer = TokenizerConfig(config.tokenizer, 50)
    assert samples(again.val, longer) == samples(first.val, longer)


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "t.tsv"
    write_rows(path)
    dataset = Text(train=str(path), sentence="a")
    assert len(dataset.open().train.pairs) == 42
    with open(path, "a", encoding="utf-8") as file:
        file.write("one more\tx\tgood\n")
    pairs = [pair for part in (dataset.open().train, dataset.open().val, dataset.open().test) for pair in part.pairs]
    assert ("one more", None) in pairs and len(pairs) == 61


def test_compressed_file_name_is_another_file(tmp_path):
    plain = write_rows(tmp_path / "t.tsv")
    (tmp_path / "t.tsv.gz").write_bytes((tmp_path / "t.tsv").read_bytes())
    assert len(Text(train=plain, sentence="a").open().class_names) == 2
    with pytest.raises(DataError, match="cannot be unpacked"):
        Text(train=f"{plain}.gz", sentence="a").open()


def test_scores(tmp_path):
    (tmp_path / "STS-B").mkdir()
    for name in ("train", "dev"):
        rows = "".join(f"{a}\t{b}\t{n / 10}\n" for n, (a, b, _) in enumerate(ROWS))
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("sentence1\tsentence2\tscore\n" + rows)
    splits = Glue(root=str(tmp_path), task="stsb").open()
    assert splits.train.label_N.dtype == np.float32 and splits.train.label_N[7] == np.float32(0.7)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_pieces_blocks_and_threads_do_not_affect_tokens(folder, monkeypatch, num_threads):
    texts = read_documents(sorted(folder.glob("*.txt*")), STRICT)
    expected = prepare_tokens(texts.shards, 1, CONFIG.tokenizer, "texts").ragged("text")
    monkeypatch.setattr(stored, "BYTES_AT_ONCE", 100)
    monkeypatch.setattr(stored, "BYTES_PER_BLOCK", 300)
    monkeypatch.setattr(stored, "usable_cores", lambda: num_threads)
    ended = prepare_tokens(texts.shards, 1, CONFIG.tokenizer, "texts", ending=[3, 2]).ragged("text")
    assert (ended.length - 2 == expected.length).all()
    for row in (0, 7, 68):
        without = expected.value[expected.begin[row] : expected.begin[row + 1]].tolist()
        assert ended.value[ended.begin[row] : ended.begin[row + 1]].tolist() == [*without, 3, 2]


def test_an_interrupted_encoding_continues(folder, monkeypatch):
    texts = read_documents(sorted(folder.glob("*.txt*")), STRICT)
    monkeypatch.setattr(stored, "BYTES_AT_ONCE", 500)
    monkeypatch.setattr(stored, "BYTES_PER_BLOCK", 1000)
    seen = []

    class Failing(WordPiece):
        def encode(self, given):
            seen.extend(given)
            if len(seen) > 40 and failing:
                raise KeyboardInterrupt
            return super().encode(given)

    failing = True
    tokenizer = Failing(CONFIG.tokenizer.vocab, True)
    monkeypatch.setattr(stored, "usable_cores", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        prepare_tokens(texts.shards, 1, tokenizer, "texts")
    failing, seen[:] = False, []
    found = prepare_tokens(texts.shards, 1, tokenizer, "texts").ragged("text")
    assert 0 < len(seen) < 60
    token_F, _ = CONFIG.tokenizer.encode(list(texts.paragraphs.texts()))
    assert found.value.tolist() == token_F.tolist()


def test_texts_to_learn_a_vocabulary_from(folder, monkeypatch):
    monkeypatch.setattr(stored, "BYTES_AT_ONCE", 200)
    texts = read_documents(sorted(folder.glob("*.txt*")), STRICT)
    every = [text for document in texts.documents for text in document]
    rows = np.array([3, 4, 20, 68])
    some = StoredColumn(texts.shards, "text", rows)
    assert list(some.texts()) == [every[row] for row in rows] == list(some)
    assert list(some.texts(np.array([1, 3]))) == [every[4], every[68]]
    joined = JoinedTexts([some, texts.paragraphs])
    assert list(joined.texts()) == [*some.texts(), *every]
    assert list(joined.texts(np.array([0, 3, 4, 9]))) == [every[3], every[68], every[0], every[5]]
    assert joined.num_bytes().tolist() == TextsInMemory([*some.texts(), *every]).num_bytes().tolist()
    assert some.digest() != texts.paragraphs.digest()


def test_results_are_in_order():
    import time

    def work(number):
        time.sleep(0.01 * (number % 3 == 0))
        return number * 2

    assert list(map_in_order(work, range(20), 3)) == list(range(0, 40, 2))
    with pytest.raises(ZeroDivisionError):
        list(map_in_order(lambda number: 1 // number, [1, 0, 1], 2))


@pytest.mark.slow
def test_a_table_takes_no_memory_for_its_rows(tmp_path):
    """A few bytes a row are held, not the row."""
    path = tmp_path / "t.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sentence", "label"])
        for number in range(20000):
            rows.writerow([f"{number} " + "x" * 300, number % 2])
    import tracemalloc

    small = tmp_path / "small.csv"
    small.write_text("sentence,label\n" + "".join(f"text {number},{number % 2}\n" for number in range(50)))
    Text(train=str(small)).open()  # imports what reading needs, which is not measured
    dataset = Text(train=str(path))
    tracemalloc.start()
    splits = dataset.open()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(splits.train) == 14000 and held < 60 * 20000 and peak < 5e6


def test_pieces_are_cut_as_a_loop_cuts_them():
    documents = [[words() for _ in range(RNG.randint(1, 6))] for _ in range(12)]
    expected = []
    for texts in documents:
        token_F, _ = CONFIG.tokenizer.encode(texts)
        expected += [[2, *token_F[begin : begin + 12], 3] for begin in range(0, len(token_F), 12)]
    token_NT, _, length_N, label_N = samples(PlainTexts(documents))
    assert [row[:length] for row, length in zip(token_NT, length_N)] == expected and set(label_N) == {-1}
    assert all(not any(row[length:]) for row, length in zip(token_NT, length_N))  # padding
