"""Rows, texts and ids that Python code gives to predict for become the samples that files of them become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from mxtrain.data.features.feature_columns import FeatureColumns
from mxtrain.data.features.feature_rows import FeatureEncoder
from mxtrain.data.features.signature import FeatureSignature
from mxtrain.data.predict_inputs import open_given
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import ConfigError, DataError
from mxtrain.recommendation.interactions import InteractionTable
from mxtrain.recommendation.recommenders import NeuMF
from mxtrain.tables.feature_table import FeatureTable
from mxtrain.tables.libsvm import Libsvm
from mxtrain.tables.number_table import NumberTable
from mxtrain.text.classification.text import MaskedText, Text
from mxtrain.text.language_modeling.plain_text import PlainText
from mxtrain.text.question_answering.squad import Squad
from mxtrain.text.token_classification.conll import Conll
from mxtrain.text.translation.parallel_text import ParallelText

NAMES = Signature((2,), [0.0, 0.0], [1.0, 1.0], ["age", "o.b"])


def signature_of(canonical: bool) -> FeatureSignature:
    columns = FeatureColumns.from_json(
        [
            {"name": "town", "kind": "category", "vocabulary": ["Ulm", "2"]},
            {"name": "code", "kind": "hashed", "buckets": 50, "canonical": canonical},
            {"name": "age", "kind": "number"},
        ]
    )
    return FeatureSignature(((2,), (1,)), class_names=["0", "1"], columns=columns)


FEATURES = signature_of(False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_lines(path: Path, rows: List[Dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("decimal, text, number", [(".", "1.5", 1.5), (",", "1,5", 1.5), (",", "1.500", 1500)])
def test_numbers_match_a_file_of_json_lines(tmp_path: Path, decimal: str, text: str, number: float) -> None:
    dataset = NumberTable(train="none.csv", decimal=decimal, missing=["-", ""])
    rows = [{"age": text, "o": {"b": 1.125}}, {"o": {"b": "-"}, "age": 0.25}, {"age": float("nan"), "o": {"b": None}}]
    expected, _ = dataset.open_inputs([write_lines(tmp_path / "rows.jsonl", rows)], NAMES, False, {})
    found, places = open_given(dataset, rows, NAMES)
    np.testing.assert_array_equal(found.value_NF, expected.value_NF)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(found.value_NF, [[number, 1.125], [0.25, np.nan], [np.nan] * 2])  # type: ignore[attr-defined]
    assert places == ["", "", ""]
    assert len(dataset.samples_from({"age": 1, "o.b": 2}, NAMES)) == 1


@pytest.mark.parametrize("canonical", [False, True])
def test_features_match_a_file_of_json_lines(tmp_path: Path, canonical: bool) -> None:
    signature = signature_of(canonical)
    dataset, _ = FeatureTable(train="none.csv", missing=["-"], decimal=",").restored(signature, [], "here")
    rows = [
        {"town": "Ulm", "code": True, "age": "1,5"},
        {"town": 2, "code": np.float64(7), "age": 2.5},
        {"town": None, "code": "-", "age": float("nan")},
    ]
    path = write_lines(tmp_path / "rows.jsonl", [rows[0], {**rows[1], "code": 7.0}, rows[2]])
    expected, _ = dataset.open_inputs([path], signature, False, {})
    encode = FeatureEncoder(signature.columns)
    for given in (rows, pytest.importorskip("pandas").DataFrame(rows)):
        found, _ = open_given(dataset, given, signature)
        for one, two in zip(encode(found, np.arange(3)), encode(expected, np.arange(3))):  # type: ignore[arg-type]
            assert one.dtype == two.dtype
            np.testing.assert_array_equal(one, two)
    ids, numbers = encode(found, np.arange(3))  # type: ignore[arg-type]
    assert ids[:, 0].tolist() == [2, 3, 0] and numbers[:2, 0].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    "rows, error, said",
    [
        ([{"town": "x", "code": 1, "age": 1}, {"town": "x"}], DataError, "sample 1: there is no column 'code'"),
        ({"town": "x", "code": 1, "age": "old"}, DataError, "sample 0: 'age' is 'old'"),
        ({"town": ["x"], "code": 1, "age": 1}, DataError, "sample 0: 'town' is a list or an object"),
        ({"town": np.zeros(2), "code": 1, "age": 1}, DataError, "sample 0: 'town' is of type ndarray"),
        ({"town": "\ud800", "code": 1, "age": 1}, DataError, "holds half a character"),
        ([{"town": "x", "code": 1, "age": 1}, 7], ConfigError, "input 1 is of type int. This run reads dicts from col"),
        (["a.csv", {"town": "x"}], ConfigError, "some inputs are paths and others are not"),
        (np.zeros(3), ConfigError, r"input 0 is an array of float64 with shape \(3,\). This run reads dicts"),
    ],
)
def test_wrong_rows_are_refused(rows: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        open_given(FeatureTable(train="none.csv"), rows, FEATURES)


def test_rows_without_names_are_refused() -> None:
    columns = FeatureColumns.from_json([{"name": "features", "kind": "indexed", "buckets": 5, "length": 2}])
    signature = FeatureSignature(((2,), (2,)), class_names=["0", "1"], columns=columns)
    with pytest.raises(ConfigError, match="input 0 is of type dict. This run reads paths of files."):
        Libsvm(train="none").samples_from({"a": 1}, signature)
    with pytest.raises(ConfigError, match=r"input 0 is of type int. This run reads paths of files."):
        BaseDataset().samples_from([3], NAMES)


def test_texts_match_a_file(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\ufeffone  two\tthree\n 4 five\t6\n")
    lines, rows = ["\ufeffone  two\tthree", " 4 five\t6"], [{"b": "three", "a": "one  two"}, {"a": " 4 five", "b": 6}]
    alone, pair = Text(train="x.csv", sentence="a"), Text(train="x.csv", sentence="a", sentence2="b")
    for dataset in (alone, pair):
        expected, _ = dataset.open_inputs([str(tmp_path / "in.txt")], NAMES, False, {})
        found, places = open_given(dataset, lines, NAMES)
        assert found.pairs == expected.pairs and len(found) == 2 and places == ["", ""]  # type: ignore[attr-defined]
        assert dataset.samples_from(lines[0], NAMES).pairs == expected.pairs[:1]  # type: ignore[attr-defined]
        expected, _ = dataset.open_inputs([write_lines(tmp_path / "in.jsonl", rows)], NAMES, False, {})
        assert dataset.samples_from(rows, NAMES).pairs == expected.pairs  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="input 1: there must be 2 texts, a tab between two"):
        pair.samples_from([lines[0], "one"], NAMES)
    with pytest.raises(DataError, match="sample 0: there is no column 'b'"):
        pair.samples_from({"a": "x"}, NAMES)
    with pytest.raises(DataError, match="was trained to find hidden tokens"):
        MaskedText(train="x.txt").samples_from("one", NAMES)
    with pytest.raises(ConfigError, match="input 0 is of type dict. This run reads strings of one line, and paths"):
        Text(train="x.csv", sentence=0, label=1, header=False).samples_from({"a": "x"}, NAMES)


@pytest.mark.parametrize(
    "given, said",
    [
        (["a", " \t"], "input 1 is empty"),
        ("a\nb", "input 0 is a text of several lines"),
        ("a\rb", "input 0 is a text of several lines"),
        ("\ud800", "input 0 is no valid Unicode"),
        (["a", 1], "input 1 is of type int. This run reads strings of one line, and paths"),
        ([{"a": "x"}], "input 0 is of type dict. This run reads strings of one line, and paths"),
    ],
)
def test_wrong_texts_are_refused(given: Any, said: str) -> None:
    for dataset in (ParallelText(train="x"), PlainText(train="x"), Conll(root="x")):
        with pytest.raises(ConfigError, match=said):
            open_given(dataset, given, NAMES)


def test_sentences_prompts_and_questions_match_files(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one  two\tthree\n 4 five\n")
    path, lines = str(tmp_path / "in.txt"), ["one  two\tthree", " 4 five"]
    for dataset, words in ((ParallelText(train="x"), "pairs"), (PlainText(train="x"), "texts")):
        expected, _ = dataset.open_inputs([path], NAMES, False, {})
        found = dataset.samples_from(lines, NAMES)
        assert getattr(found, words) == getattr(expected, words) and len(found) == 2
    tags, _ = Conll(root="x").open_inputs([path], NAMES, False, {})
    assert Conll(root="x").samples_from(lines, NAMES).words.sentences == tags.words.sentences  # type: ignore[attr-defined]
    asked = [{"question": "who", "context": "me"}, {"question": "b", "context": "me", "id": "7"}]
    asked_in_file, _ = Squad(root="x").open_inputs([write_lines(tmp_path / "in.jsonl", asked)], NAMES, False, {})
    found = Squad(root="x").samples_from(asked, NAMES)
    questions, expected_ones = found.questions, asked_in_file.questions  # type: ignore[attr-defined]
    assert questions.contexts == expected_ones.contexts == ["me"]
    assert [(one.id, one.text, one.context) for one in questions.questions] == [("1", "who", 0), ("7", "b", 0)]
    assert [(one.id, one.text, one.context) for one in expected_ones.questions] == [("1", "who", 0), ("7", "b", 0)]
    for wrong, said in (({"question": "x"}, "no 'context'"), ({"question": 1, "context": "a"}, "a text was expected")):
        with pytest.raises(DataError, match=f"input 1 has no question and context .*{said}"):
            Squad(root="x").samples_from([asked[0], wrong], NAMES)
    with pytest.raises(ConfigError, match="input 0 is of type str. This run reads dicts with question and context"):
        open_given(Squad(root="x"), "who", NAMES)


def test_users_match_a_file(tmp_path: Path) -> None:
    lines = "".join(f"u{user},i{item}\n" for user in range(4) for item in range(user, user + 4))
    (tmp_path / "bought.csv").write_text(f"user,item\n{lines}")
    (tmp_path / "ids.txt").write_text("u2\nu0\n")
    dataset = InteractionTable(path=str(tmp_path / "bought.csv"))
    signature = dataset.infer_signature(dataset.open(), NeuMF())
    expected, _ = dataset.open_inputs([str(tmp_path / "ids.txt")], signature, False, {})
    found, _ = open_given(dataset, [{"user": "u2"}, {"user": "u0"}], signature)
    np.testing.assert_array_equal(found.user_N, expected.user_N)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="input 1: there is no user 'u9'"):
        dataset.samples_from([{"user": "u1"}, {"user": "u9"}], signature)
