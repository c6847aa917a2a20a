"""SQuAD's files: what is read, refused and found by `data check`; questions about documentation."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from pydantic import ValidationError

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.recognition import FileTree
from mxtrain.errors import DataError
from mxtrain.text.bert import Bert
from mxtrain.text.bilstm import BiLSTM
from mxtrain.text.question_answering.questions import read_question_lines, read_squad
from mxtrain.text.question_answering.squad import Squad, numpydoc_questions, pattern_answer
from mxtrain.types.kinds import TargetKind

pytestmark = pytest.mark.usefixtures("own_cache")
CONTEXT = "The cat sat on the mat."
GOOD: Dict[str, Any] = {"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}
NULL: Dict[str, Any] = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}


def squad(*questions: Dict[str, Any], context: str = CONTEXT) -> str:
    return json.dumps({"data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]})


@pytest.fixture
def write_dataset(tmp_path: Path) -> Callable[..., Squad]:
    def make_dataset(train: str, val: str = squad(GOOD, context=f"{CONTEXT} Yes."), **settings: Any) -> Squad:
        (tmp_path / "train-v1.1.json").write_text(train)
        (tmp_path / "dev-v1.1.json").write_text(val)
        return Squad(root=str(tmp_path), **settings)

    return make_dataset


def test_questions_with_and_without_answers(write_dataset: Any) -> None:
    splits = write_dataset(squad(GOOD)).open()
    assert len(splits.train) == len(splits.val) == 1 and splits.test is None
    with pytest.raises(DataError, match="the question '2' has no answer.*Type dataset.null_answers=true"):
        write_dataset(squad(GOOD, NULL)).open()
    assert len(write_dataset(squad(GOOD, NULL), null_answers=True).open().train) == 2


def test_contexts_are_held_out_as_units(write_dataset: Any) -> None:
    data = [{"paragraphs": [{"context": f"The cat {n} sat", "qas": [GOOD, {**GOOD, "id": "3"}]}]} for n in range(20)]
    splits = write_dataset(json.dumps({"data": data}), **{"val_fraction": 0.25}).model_copy(update={"val": None}).open()
    contexts = [{one.context for one in part.questions.questions} for part in (splits.train, splits.val)]
    assert [len(some) for some in contexts] == [15, 5] and not contexts[0] & contexts[1]


@pytest.mark.parametrize(
    "entry, said",
    [
        (
            {**GOOD, "answers": [{"text": "cat", "answer_start": 5}]},
            "the answer 'cat' is not at 5; 'at ' is there. It is at 4",
        ),
        ({**GOOD, "answers": [{"text": "dog", "answer_start": 0}]}, "The context does not contain it"),
        ({**GOOD, "answers": [{"text": "cat", "answer_start": -19}]}, "is not at -19"),
        ({**GOOD, "answers": []}, "has no answer. Remove it, or mark it"),
        ({**GOOD, "is_impossible": True}, "is marked as impossible, and has an answer"),
        ({"id": "1", "question": 3}, "is no file of SQuAD"),
        ({"question": "x"}, "is no file of SQuAD .there is no 'id'.*qas, id"),
        ({**GOOD, "answers": 3}, "is no file of SQuAD .its parts are of other kinds"),
        ({**GOOD, "answers": [{"text": "x", "answer_start": math.inf}]}, "a whole number was expected, not inf"),
        ({**GOOD, "answers": [{"text": "x", "answer_start": 1.5}]}, "is no file of SQuAD .a whole number .*not 1.5"),
        ({**GOOD, "answers": [{"text": "x", "answer_start": "1_0"}]}, "a whole number was expected, not '1_0'"),
        ({**GOOD, "answers": [{"text": "x", "answer_start": 10**30}]}, "is no file of SQuAD .*64-bit"),
    ],
)
def test_mistakes_are_refused(write_dataset: Any, entry: Dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        write_dataset(squad(GOOD, entry)).open()


def test_data_check_lists_each(write_dataset: Any, check: Any) -> None:
    wrong: List[Any] = [{**GOOD, "id": "9", "answers": [{"text": "mat", "answer_start": 1}]}, {**GOOD, "answers": []}]
    wrong += [{**GOOD, "id": "10", "question": " "}]
    found = check(write_dataset(squad(GOOD, *wrong)))
    name = "train-v1.1.json"
    assert sorted(found) == [
        ("answer_offset", name, 1),
        ("empty_text", name, 3),
        ("no_answer", name, 2),
        ("repeated_id", name, 2),
    ]


def test_a_file_without_questions_is_refused_by_its_name(write_dataset: Any) -> None:
    with pytest.raises(DataError, match="train-v1.1.json: there is no question"):
        write_dataset('{"data": []}').open()
    with pytest.raises(DataError, match="'2' and 1 other have no answer"):
        write_dataset(squad(GOOD, NULL, {**NULL, "id": "3"})).open()


def test_lines_to_predict_for(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"question": "Q", "context": "The cat"}\n\n{"question": "W", "context": "The cat", "id": "b"}\n')
    found = read_question_lines(str(path))
    assert [one.id for one in found.questions] == ["1", "b"] and found.contexts == ["The cat"]
    path.write_text('{"question": "Who?"}\n')
    with pytest.raises(DataError, match="line 1 is no line of JSON with question and context"):
        read_question_lines(str(path))


def test_ids_may_be_integers_in_both_forms(write_dataset: Any, tmp_path: Path) -> None:
    assert write_dataset(squad({**GOOD, "id": 7})).open().train.questions.questions[0].id == "7"
    lines, whole = tmp_path / "x.jsonl", tmp_path / "x.json"
    for given, ids in ((7, ["7"]), (True, None), ([1], None), (None, None), (1.5, None)):
        entry = {"question": "Q", "id": given}
        lines.write_text(json.dumps({**entry, "context": "The cat"}))
        whole.write_text(json.dumps({"data": [{"paragraphs": [{"context": "The cat", "qas": [entry]}]}]}))
        for path in (lines, whole):
            if ids is not None:
                assert [one.id for one in read_question_lines(str(path)).questions] == ids
                continue
            with pytest.raises(DataError, match="an id must be a text or a whole number, not"):
                read_question_lines(str(path))


def test_matches_are_marked_if_the_model_has_a_third_type() -> None:
    assert Squad().for_run(TargetKind, BiLSTM()).window_settings.marks_matches
    assert not Squad().for_run(TargetKind, Bert()).window_settings.marks_matches
    with pytest.raises(ValidationError, match="leaves no room for a context"):
        Squad(max_length=64, max_question=64)


def test_questions_about_documentation() -> None:
    parts = numpydoc_questions(0.1, 0.1, 0)
    contexts = [context for part in parts for context in part.contexts]
    assert len(contexts) == len(set(contexts)) and all("\n" not in context for context in contexts)
    for part in parts:
        assert part.questions
        for question in part.questions:
            ((text, begin),) = question.answers
            context = part.contexts[question.context]
            assert context[begin : begin + len(text)] == text and question.text in context[:begin]
    files = [{question.id.partition(":")[0] for question in part.questions} for part in parts]
    assert not files[0] & files[1] and not files[0] & files[2] and not files[1] & files[2]


def test_pattern_of_an_answer() -> None:
    context = "a : array_like Elements to sum. axis : None or int, optional Axis along which."
    assert pattern_answer("a", context) == "array_like" and pattern_answer("b", context) == ""


ROW = {
    "id": "7",
    "title": "T",
    "context": "On floor 0 \U0001f600 stands item 0 near box 3.",
    "question": "where?",
    "answers": {"text": ["box 3"], "answer_start": [32]},
}
NULL_ROW = {**ROW, "id": "8", "answers": {"text": [], "answer_start": []}}


def write_rows(path: Path, rows: List[Dict[str, Any]], has_answers: bool = True) -> None:
    """Writes rows as the library datasets of Hugging Face does; pyarrow is told the types, as by its features."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    answers = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])
    types = {name: pa.string() for name in ("id", "title", "context", "question")}
    parquet.write_table(
        pa.Table.from_pylist(rows, pa.schema([*types.items(), *([("answers", answers)] if has_answers else [])])), path
    )


@pytest.mark.parametrize("form", ["lines", "parquet"])
def test_rows_of_hugging_face_are_the_questions_of_the_original_file(tmp_path: Path, form: str) -> None:
    cat = [{"text": "cat", "answer_start": 4}, {"text": "The cat", "answer_start": 0}]
    entries = [{**GOOD, "answers": cat}, NULL, {**GOOD, "id": "3"}]
    original = tmp_path / "a.json"
    paragraphs = [{"context": context, "qas": entries} for context in (CONTEXT, f"{CONTEXT} Then.")]
    original.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    rows = [
        {
            **{"id": entry["id"], "title": "t", "context": paragraph["context"], "question": entry["question"]},
            "answers": {name: [answer[name] for answer in entry["answers"]] for name in ("text", "answer_start")},
        }
        for paragraph in paragraphs
        for entry in entries
    ]
    path = tmp_path / ("train.jsonl" if form == "lines" else "train.parquet")
    if form == "lines":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        write_rows(path, rows)
    found, expected = read_squad(str(path)), read_squad(str(original))
    assert found.contexts == expected.contexts
    plain = [[replace(one, location=DataLocation()) for one in part.questions] for part in (found, expected)]
    assert plain[0] == plain[1] and len(plain[0]) == 6
    splits = Squad(train=str(path), null_answers=True, val_fraction=0.5).open()
    assert len(splits.train) == len(splits.val) == 3
    guess = Squad.recognise(FileTree(path))
    assert guess is not None and guess.settings["train"] == path.name
    assert guess.settings.get("null_answers") == (True if form == "lines" else None)


def test_marks_of_parquet_are_booleans(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{**ROW, "is_impossible": False}, {**NULL_ROW, "is_impossible": True}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert [len(question.answers) for question in read_squad(str(tmp_path / "a.parquet")).questions] == [1, 0]
    parquet.write_table(pa.Table.from_pylist([{**ROW, "is_impossible": True}]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="record 0 of .* is marked as impossible, and has an answer"):
        read_squad(str(tmp_path / "a.parquet"))


def test_rows_of_parquet_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_rows(path, [ROW, {**ROW, "id": "b", "answers": {"text": ["box 3"], "answer_start": []}}])
    with pytest.raises(DataError, match="a.parquet is no file of SQuAD .*as long a list in answer_start, in record 1"):
        read_squad(str(path))
    write_rows(path, [ROW, {**ROW, "id": "b", "answers": {"text": ["box 3"], "answer_start": [1]}}])
    with pytest.raises(DataError, match=r"record 1 of '.*a.parquet'.*is not at 1.*It is at 32"):
        read_squad(str(path))
    write_rows(path, [{**ROW, "context": None}])
    with pytest.raises(DataError, match="a text was expected, not None"):
        read_squad(str(path))
    write_rows(path, [ROW], has_answers=False)
    assert [one.text for one in read_question_lines(str(path)).questions] == ["where?"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="a.parquet cannot be read as Parquet"):
        read_squad(str(path))


@pytest.mark.parametrize("form", ["lines", "one_line", "list", "data"])
def test_questions_as_hugging_face_writes_them(tmp_path: Path, form: str) -> None:
    rows = (
        [ROW]
        if form == "one_line"
        else [
            ROW,
            NULL_ROW,
            {**ROW, "id": "9", "context": "In box 3.", "answers": {"text": ["box 3"], "answer_start": [3]}},
        ]
    )
    whole = {"list": rows, "data": {"data": rows}}.get(form)
    lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\r\n" for row in rows)
    (tmp_path / "t.jsonl").write_bytes(lines.encode() if whole is None else json.dumps(whole, indent=1).encode())
    found = read_squad(str(tmp_path / "t.jsonl"))
    assert found.contexts == list(dict.fromkeys(row["context"] for row in rows))
    assert [one.id for one in found.questions] == [row["id"] for row in rows]
    assert [(one.text, one.begin) for one in found.questions[0].answers] == [("box 3", 32)]
    if form == "lines":
        assert [one.location.line for one in found.questions] == [1, 2, 3] and found.questions[1].answers == ()


@pytest.mark.parametrize(
    "row, said",
    [
        ({**ROW, "answers": {"text": ["box 3"], "answer_start": []}}, "as long a list in answer_start, in line 2"),
        ({**ROW, "answers": {"text": ["box 3"], "answer_start": [2.5]}}, "whole number"),
        ("{", "line 2 is not JSON"),
        ('{"id": 1e999}', "beyond the range of float64"),
        ('{"id": ' + "9" * 400 + "}", "beyond the range of 64-bit integers"),
        ('{"id": ' + "[" * 5000 + "]" * 5000 + "}", "nested deeper"),
    ],
)
def test_wrong_lines_of_questions(tmp_path: Path, row: Any, said: str) -> None:
    lines = [json.dumps(ROW), row if isinstance(row, str) else json.dumps(row)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=said):
        read_squad(str(tmp_path / "t.jsonl"))


def test_a_file_that_is_named_without_a_root_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the bundled documentation, which `root=null` alone means."""
    (tmp_path / "mine.json").write_text(squad(GOOD))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="are the same file"):
        Squad(train="mine.json", val=str(tmp_path / "mine.json")).open()
    with pytest.raises(DataError, match="leaves no validation samples: 1 sample,"):
        Squad(train="mine.json").open()
    with pytest.raises(DataError, match="nope.json is not there"):
        Squad(train="mine.json", val="nope.json").open()
