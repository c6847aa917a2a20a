"""Files as programs and people write them, whose content is compared with what they were written of."""

from __future__ import annotations

import csv
import json
import logging
import struct
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import pytest

from mxtrain.data.checking.problems import STRICT
from mxtrain.data.table.cells import spelled_alike
from mxtrain.data.table.columns import names_of_columns, read_columns
from mxtrain.errors import DataError
from mxtrain.recommendation.interactions import InteractionTable
from mxtrain.speech.recording import RecordingError, read_recording
from mxtrain.speech.utterances import read_kaldi, read_librispeech, read_manifest
from mxtrain.tables.feature_table import FeatureTable
from mxtrain.tables.number_table import NumberTable
from mxtrain.text.classification.text import Text
from mxtrain.text.text_files import read_table
from mxtrain.text.token_classification.conll import Conll
from mxtrain.text.translation.parallel_text import ParallelText

TEXTS = ["two words", 'it is "quoted" inside', "a, b; c", "caf\u00e9 \U0001f600", "\u05e9\u05dc\u05d5\u05dd", "it's"]
ROWS = [(text, "pos" if number % 2 else "neg") for number, text in enumerate(TEXTS)]
NAMES = ("sentence", "label")


def quoted(cell: str) -> str:
    return '"{}"'.format(cell.replace('"', '""'))


def where(signs: str) -> Callable[[str], str]:
    """Quotes cells with one of the signs."""
    return lambda cell: quoted(cell) if any(sign in cell for sign in signs) else cell


def table(rows: Sequence[Sequence[str]], mark: str, quote: Callable[[str], str] = str, end: str = "\n") -> str:
    return "".join(mark.join(map(quote, row)) + end for row in rows)


def write(path: Path, content: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


TABLES: Dict[str, Tuple[str, str]] = {
    "pandas quotes where it must": ("a.tsv", table([NAMES, *ROWS], "\t", where('"\t\n'))),
    "R quotes all texts": ("a.tsv", table([NAMES, *ROWS], "\t", quoted)),
    "Excel quotes commas": ("a.tsv", table([NAMES, *ROWS], "\t", where('",'), "\r\n")),
    "MySQL quotes cells, not names": ("a.tsv", "sentence\tlabel\n" + table(ROWS, "\t", quoted)),
    "spaces behind commas": ("a.csv", "sentence, label\n" + table(ROWS, ", ", quoted)),
    "spaces around labels": ("a.csv", "sentence,label\n" + table([(a, f" {b} ") for a, b in ROWS], ",", where('",'))),
    "rows of empty cells": ("a.csv", table([NAMES, *ROWS, ("", ""), (" ", "")], ",", where('",'))),
    "columns without names": ("a.csv", table([(*NAMES, "", ""), *((*row, "", "") for row in ROWS)], ",", quoted)),
}


@pytest.mark.parametrize("name", TABLES)
def test_texts_and_labels(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / TABLES[name][0], TABLES[name][1])
    found = read_table(path, list(NAMES), True)
    pairs = found.build(found.name_N, np.arange(len(found))).pairs
    assert [(pairs[row][0], found.names[found.name_N[row]]) for row in range(len(found))] == ROWS


def test_line_ends_and_tabs_in_quoted_cells(tmp_path: Path) -> None:
    rows = [("one\nand two", "1"), ('a\t"b"', "0"), ("three", "1")]
    path = write(tmp_path / "a.tsv", table([NAMES, *rows], "\t", where('"\t\n')))
    assert read_columns(path, NAMES, True).rows == rows


UNQUOTED = {
    "one is not closed": ['"To be, he said', "no"],
    "a quote goes on in the next row": ['"Come here', 'and go"'],
    "only some texts are in quotes": ['"Hello there"', "no", "one, two"],
    "a quote within": ['say "hi"', 'the ""so-called"" end'],
}


@pytest.mark.parametrize("name", UNQUOTED)
def test_quotes_are_plain_characters_in_unquoted_tables(tmp_path: Path, name: str) -> None:
    rows = [(text, str(number % 2)) for number, text in enumerate(UNQUOTED[name])]
    assert read_columns(write(tmp_path / "a.tsv", table([NAMES, *rows], "\t")), NAMES, True).rows == rows


def test_a_quoted_cell_among_unquoted_ones_is_named(tmp_path: Path, caplog: Any) -> None:
    path = write(tmp_path / "a.tsv", 'sentence\tlabel\n"open\t1\n"a ""b"" c"\t0\n')
    assert read_columns(path, NAMES, True).rows[1] == ('"a ""b"" c"', "0")
    assert 'a.tsv, line 3: the quotes of "a ""b"" c" are read as characters' in caplog.text


REFUSED: Dict[str, Tuple[str, Any, str]] = {
    "no label": ("a.csv", "sentence,label\na,1\nb,\n", "a.csv, line 3: 'label' is empty. Give the label"),
    "two labels": ("a.csv", "sentence,label,label\na,1,0\n", "two columns are called 'label'"),
    "cells behind an empty one": ("a.csv", "sentence,label\na,1\nb,0,,1\n", "line 3: the row has more.*'1' below"),
    "NaN of pandas": ("a.jsonl", '{"sentence": NaN, "label": 1}\n', "line 1: 'sentence' is null"),
    "a key twice": ("a.jsonl", '{"sentence": "a", "label": 1, "label": 0}\n', 'line 1.*the key "label" twice'),
    "UTF-16 without a mark": ("a.csv", "sentence,label\na,1\n".encode("utf-16-le"), "is in UTF-16LE, not UTF-8.*iconv"),
    "Parquet": ("a.csv", b"PAR1\x15\x04\xd7", "is a Parquet file, not a text"),
    "Feather": ("a.csv", b"ARROW1\x00\x00", "is an Arrow file .Feather., not a text"),
    "a workbook": ("a.csv", b"PK\x03\x04\x14\x00", "is an archive .ZIP, as .xlsx"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tables_of_texts_that_are_refused(tmp_path: Path, name: str) -> None:
    file, content, said = REFUSED[name]
    with pytest.raises(DataError, match=said):
        read_table(write(tmp_path / file, content), list(NAMES), True)


@pytest.mark.parametrize(
    "labels, said",
    [
        (["good", "Good"], "'good' and 'Good' differ in case"),
        (["caf\u00e9", "cafe\u0301"], "encoding of accents"),
        (["1", "1.0"], "'1' and '1.0' differ in case, spaces, the encoding of accents or the digits of a number alone"),
        (["a b", "a  b"], "differ in case, spaces"),
        (["yes", "NA"], "the label 'NA' of 10 rows is read as a class"),
    ],
)
def test_labels_that_may_be_one_or_none_are_warned_of(tmp_path: Path, caplog: Any, labels: Any, said: str) -> None:
    rows = [(f"text {number}", labels[number % 2]) for number in range(20)]
    splits = Text(train=write(tmp_path / "a.csv", table([NAMES, *rows], ","))).open()
    assert splits.class_names == sorted(labels) and said in caplog.text


def test_first_line_is_reported_as_header_or_row(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    path = write(tmp_path / "a.tsv", "good one\t1\nbad one\t0\n")
    assert len(read_columns(path, [0, 1], True).rows) == 1
    assert "is read as names of columns: 'good one', '1'. If it is a row, type dataset.header=false" in caplog.text
    path = write(tmp_path / "b.tsv", "sentence\tlabel\na\t1\n")
    assert len(read_columns(path, [0, 1], False).rows) == 2
    assert "line 1: the first line, sentence, label, looks like names" in caplog.text


def test_a_tab_within_a_text_of_a_table_without_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2: the row has 3 cells, and the first row 2.*'c' is in none"):
        read_columns(write(tmp_path / "a.tsv", "x\ty\na\tb\tc\n"), [0, 1], False)


PAIRS = [(f"Hello {number}", f"Hallo {number}") for number in range(8)]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_translations_within_objects_as_hugging_face_writes_them(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    rows: List[Any] = [{"id": str(number), "translation": {"en": a, "de": b}} for number, (a, b) in enumerate(PAIRS)]
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    assert set(names_of_columns(path)) == {"id", "translation.en", "translation.de"}
    assert read_columns(path, ["translation.en", "translation.de"], True).rows == PAIRS
    with pytest.raises(DataError, match=r"no column 'en'.* It has .*translation\.en"):
        ParallelText(train=str(path)).open()


NUMBERS = [(round(0.5 * number - 2, 1), number * number, number % 3) for number in range(12)]
PLAIN = ("a", "b", "target")


def numbers_of(path: str, **given: Any) -> Tuple[List[str], List[Tuple[float, ...]]]:
    splits = NumberTable(train=path, **given).open()
    parts: List[Any] = [splits.train, splits.val, splits.test]
    rows = [(*row, target) for part in parts for row, target in zip(part.value_NF.tolist(), part.target_N.tolist())]
    return list(splits.class_names), sorted(rows)


def numbered(name: str, first: int, step: int = 1, mark: str = ",") -> str:
    """A table whose first column holds the numbers of rows, as if they were drawn from a larger table with a step."""
    rows = [(first + step * number, *row) for number, row in enumerate(NUMBERS)]
    return table([(name, *PLAIN), *(tuple(map(str, row)) for row in rows)], mark)


ROW_NUMBERS = {
    "pandas, read and written twice": ("a.csv", numbered("Unnamed: 0.1", 0)),
    "pandas' reset_index of a sample": ("a.csv", numbered("index", 4, 7)),
    "Rdatasets": ("a.csv", numbered("rownames", 1)),
    "read.csv and write.csv of R": ("a.csv", numbered("X", 1)),
    "readr": ("a.csv", numbered("...1", 1)),
    "quoted names of R": ("a.tsv", numbered('"rownames"', 1, mark="\t")),
    "rows without cells": ("a.csv", numbered("Unnamed: 0", 0) + ",,,\n"),
    "spaces and quotes": ("a.csv", table([PLAIN, *(tuple(map(str, row)) for row in NUMBERS)], ", ", quoted)),
}


@pytest.mark.parametrize("name", ROW_NUMBERS)
def test_row_numbers_are_no_features(tmp_path: Path, name: str) -> None:
    file, content = ROW_NUMBERS[name]
    path = write(tmp_path / file, content)
    assert numbers_of(path) == (["a", "b"], sorted(NUMBERS))


def test_the_index_of_pandas_in_a_parquet_is_no_feature(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(NUMBERS, columns=PLAIN).sample(frac=1, random_state=0)
    frame.to_parquet(tmp_path / "a.parquet")
    assert numbers_of(str(tmp_path / "a.parquet")) == (["a", "b"], sorted(NUMBERS))


@pytest.mark.parametrize("name", ["x", "index_of_refraction", "row"])
def test_other_numbers_in_order_are_features(tmp_path: Path, name: str) -> None:
    assert numbers_of(write(tmp_path / "a.csv", numbered(name, 0)))[0] == [name, "a", "b"]


def test_integers_beyond_32_bits_are_reported(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    rows = [(str(20240101 + number), str(number % 2)) for number in range(12)]
    path = write(tmp_path / "a.csv", table([("day", "target"), *rows], ","))
    FeatureTable(train=path).open()
    NumberTable(train=path).open()
    said = "numbers of 'day' are kept in 32 bits, in which 20240103 and 20240104 are the same"
    assert caplog.text.count(said) == 2


def test_texts_among_numbers_are_shown_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,target\n1,2\n0x10,3\n")
    with pytest.raises(DataError, match="'a' holds texts, such as '0x10' in line 3, .* Type dataset=feature_table"):
        NumberTable(train=path).open()


def test_words_for_missing_categories_are_reported(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    rows = [(("NA", "DE", "")[number % 3], str(number % 2)) for number in range(30)]
    FeatureTable(train=write(tmp_path / "a.csv", table([("country", "target"), *rows], ","))).open()
    assert "'NA' in 'country' is read as a missing value" in caplog.text


def test_values_that_differ_in_spelling_are_reported(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    rows = [(("York", "york ", "Bath")[number % 3], str(number % 2)) for number in range(30)]
    FeatureTable(train=write(tmp_path / "a.csv", table([("town", "target"), *rows], ","))).open()
    assert "the values 'York' and 'york' of 'town' differ in case, spaces, the encoding of accents" in caplog.text


@pytest.mark.usefixtures("own_cache")
def test_spellings_of_one_value_are_not_reported(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    rows = [(("True", "true", "false")[number % 3], ("1", "1.0")[number % 2], str(number % 2)) for number in range(30)]
    columns = {"vip": "category", "code": "category"}
    path = write(tmp_path / "a.csv", table([("vip", "code", "target"), *rows], ","))
    FeatureTable(train=path, columns=columns).open()
    assert "differ in case" not in caplog.text


def test_words_that_pandas_quoted_are_named(tmp_path: Path, caplog: Any) -> None:
    write(tmp_path / "train.txt", '"""" O\nAda B-PER\n\n' * 20)
    splits = Conll(root=str(tmp_path), val=None, test=None).open()
    assert splits.train.words.sentences[0] == ['""""', "Ada"]  # type: ignore[attr-defined]  # they are tagged
    assert caplog.text.count('line 1: the quotes of the word """" are read as characters') == 1


def test_ids_of_a_quoted_table_with_tabs(tmp_path: Path) -> None:
    rows = [(f"u{user}", f"B00{item:03d}", str(user + item)) for user in range(4) for item in range(user, user + 5)]
    path = write(tmp_path / "a.tsv", "user\titem\ttime\n" + table(rows, "\t", quoted))
    splits = InteractionTable(path=path, timestamp="time").open()
    catalog = splits.train.catalog  # type: ignore[attr-defined]  # they are interactions
    assert list(catalog.users) == ["u0", "u1", "u2", "u3"]
    assert list(catalog.items) == list(dict.fromkeys(row[1] for row in rows))


@pytest.mark.parametrize("tags", [("b-per", "i-per"), ("B_PER", "I_PER"), ("PER-B", "PER-I")])
def test_entities_in_other_writings_are_warned_of(tmp_path: Path, caplog: Any, tags: Tuple[str, str]) -> None:
    sentence = f"Ada {tags[0]}\nLovelace {tags[1]}\nreads O\n\n"
    write(tmp_path / "train.txt", sentence * 20)
    splits = Conll(root=str(tmp_path), val=None, test=None).open()
    assert splits.class_names == ["O", *sorted(tags)]
    assert "are read as names of their own. Tags of entities are written as B-PER" in caplog.text


SPOKEN = ("path", "sentence")
SAID = [(f"{number}.wav", text) for number, text in enumerate(TEXTS)]
MANIFESTS = {
    "pandas": table([SPOKEN, *SAID], "\t", where('"\t\n')),
    "R": table([SPOKEN, *SAID], "\t", quoted),
    "Excel with tabs": table([SPOKEN, *SAID], "\t", where('",'), "\r\n"),
    "Excel with semicolons": "\ufeff" + table([SPOKEN, *SAID], ";", where('";'), "\r\n"),
    "Excel with a separator": "sep=,\r\n" + table([SPOKEN, *SAID], ",", where('",'), "\r\n"),
    "spaces behind commas": "path, sentence\n" + table(SAID, ", ", quoted),
    "rows of empty cells": table([SPOKEN, *SAID, ("", "")], ",", where('",')),
    "ends of lines of an old Mac": table([SPOKEN, *SAID], ",", where('",'), "\r"),
    "Hugging Face": "".join(json.dumps({"audio": {"path": a, "bytes": None}, "sentence": b}) + "\n" for a, b in SAID),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a", MANIFESTS[name])
    assert [(Path(one.path).name, one.text) for one in read_manifest(path, STRICT)] == SAID


@pytest.mark.parametrize(
    "content, said",
    [
        ("path,text\n0.wav,a\n1.wav,yes, we can\n", "line 3 has 3 cells, and the header 2 names: ' ?we can' is below"),
        ("path,text,text\n0.wav,a,b\n", "two columns are called 'text'"),
        ("path,text,start,end\n0.wav,a,1.5,2\n", "line 2 has start and end, which are not read: write offset"),
        ('{"path": "0.wav", "text": "\\ud83d"}\n', r"line 1 has half a character, .ud83d, in its text"),
    ],
)
def test_manifests_that_are_refused(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_manifest(write(tmp_path / "a", content), STRICT)


def test_unsupported_compressed_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a.json.gz is packed by gzip, .* gunzip -k FILE"):
        read_manifest(write(tmp_path / "a.json.gz", b"\x1f\x8b\x08\x00"), STRICT)


def test_channels_of_segments_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "wav.scp", "r a.wav\n")
    write(tmp_path / "text", "u yes\n")
    write(tmp_path / "segments", "u r 0.5 1.25 -1\n")
    assert [(one.begin_s, one.duration_s) for one in read_kaldi(str(tmp_path), STRICT)] == [(0.5, 0.75)]
    write(tmp_path / "segments", "u r 0.5 1.25 1\n")
    with pytest.raises(
        DataError, match="segments, line 1 is of the channel 1 of a recording, and channels are averaged"
    ):
        read_kaldi(str(tmp_path), STRICT)


def test_endings_of_recordings_in_capital_letters(tmp_path: Path) -> None:
    write(tmp_path / "1/2/1-2-0.FLAC", "")
    write(tmp_path / "1/2/1-2.trans.txt", "1-2-0 YES\n")
    (only,) = read_librispeech(str(tmp_path), STRICT)
    assert (Path(only.path).name, only.text) == ("1-2-0.FLAC", "YES")
    write(tmp_path / "1/2/1-2.trans.txt", "1-2-0 YES\n1-2-0 NO\n")
    with pytest.raises(DataError, match="1-2.trans.txt, line 2 is about '1-2-0', as .*, line 1 is"):
        read_librispeech(str(tmp_path), STRICT)


SOUND = np.random.RandomState(0).randint(-20000, 20000, 800).astype(np.int16)


def chunk(name: bytes, content: bytes, order: str = "<", length: Optional[int] = None) -> bytes:
    size = len(content) if length is None else length
    return name + struct.pack(f"{order}I", size) + content + b"\0" * (len(content) % 2)


def wav(*chunks: bytes, bits: int = 16, order: str = "<", name: bytes = b"RIFF") -> bytes:
    form = struct.pack(f"{order}HHIIHH", 1, 1, 16000, 2000 * bits, bits // 8, bits)
    return name + chunk(b"", b"WAVE" + chunk(b"fmt ", form, order) + b"".join(chunks), order)


def bytes_24(values: np.ndarray) -> bytes:
    return b"".join(struct.pack("<i", int(value) << 8)[:3] for value in values)


AU = b".snd" + struct.pack(">IIIII", 24, 1600, 3, 16000, 1) + SOUND.astype(">i2").tobytes()
SPHERE = (
    b"NIST_1A\n   1024\nchannel_count -i 1\nsample_count -i 800\nsample_rate -i 16000\nsample_n_bytes -i 2\n"
    b"sample_byte_format -s2 01\nsample_sig_bits -i 16\nsample_coding -s3 pcm\nend_head\n"
).ljust(1024) + SOUND.tobytes()
RF64 = (
    b"RF64\xff\xff\xff\xffWAVE"
    + chunk(b"ds64", struct.pack("<QQQI", 1672, 1600, 800, 0))
    + wav()[12:]
    + chunk(b"data", SOUND.tobytes(), length=0xFFFFFFFF)
)
WHOLE = {
    "24 bits, an odd number of bytes": wav(chunk(b"data", bytes_24(SOUND[:799])), bits=24),
    "24 bits to a pipe by SoX": wav(chunk(b"data", bytes_24(SOUND), length=0x7FFFF000 // 3 * 3), bits=24),
    "big-endian": wav(chunk(b"data", SOUND.astype(">i2").tobytes(), ">"), order=">", name=b"RIFX"),
    "tags of an odd length": wav(chunk(b"LIST", b"INFOISFT\x03\0\0\0abc"), chunk(b"data", SOUND.tobytes())),
    "AU": AU,
    "SPHERE": SPHERE,
    "RF64": RF64,
}


@pytest.mark.parametrize("name", WHOLE)
def test_recordings(tmp_path: Path, name: str) -> None:
    found = read_recording(write(tmp_path / "a", WHOLE[name]), 16000)
    np.testing.assert_array_equal(found, (SOUND / 32768).astype(np.float32)[: len(found)])
    assert len(found) in (799, 800)


@pytest.mark.parametrize("name", ["big-endian", "AU", "SPHERE", "RF64"])
def test_recordings_that_are_cut(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordingError, match="is cut: 50% of what its header says is there"):
        read_recording(write(tmp_path / "a", WHOLE[name][:-800]), 16000)


def test_recording_with_empty_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is empty: its header says that it holds no sound"):
        read_recording(write(tmp_path / "a", wav(chunk(b"data", SOUND.tobytes(), length=0))), 16000)


def test_a_table_of_the_csv_module_with_tabs(tmp_path: Path) -> None:
    with open(tmp_path / "a.tsv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, "excel-tab").writerows([NAMES, *ROWS])
    assert read_columns(tmp_path / "a.tsv", NAMES, True).rows == ROWS


def test_texts_are_grouped_by_parsed_value() -> None:
    words = ["1", "1.0", "01", "1e0", "2", "nan", "NaN", "inf", "x1", "X1", "1.5"]
    assert spelled_alike(words) == [["1", "1.0", "01", "1e0"], ["nan", "NaN"], ["x1", "X1"]]
