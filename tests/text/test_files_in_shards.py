"""Several files as one split of each dataset of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np
import pytest

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.checking.problems import Problem
from mxtrain.data.loading.folds import Fold
from mxtrain.data.spec import open_splits, with_fold
from mxtrain.errors import DataError
from mxtrain.text.classification.text import MaskedText, Text
from mxtrain.text.language_modeling.plain_text import PlainText
from mxtrain.text.question_answering import questions
from mxtrain.text.question_answering.questions import read_squad_files
from mxtrain.text.question_answering.squad import Squad
from mxtrain.text.token_classification.conll import Conll
from mxtrain.types.kinds import ClassSet, Number

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS = [{"sentence": f"text {row}", "label": row % 3, "weight": row + 1} for row in range(30)]
SIZES = (14, 0, 16)


def write_table(
    path: Path,
    rows: Sequence[Dict[str, Any]],
    classes: Optional[List[str]] = None,
    names: Sequence[str] = (*ROWS[0],),
) -> None:
    names = list(rows[0]) if rows else names
    if path.suffix == ".parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
        columns = {
            name: pyarrow.array([row[name] for row in rows], types[type((rows or ROWS)[0][name])]) for name in names
        }
        feature = {"label": {"names": classes, "_type": "ClassLabel"}} if classes else {}
        metadata = {b"huggingface": json.dumps({"info": {"features": feature}}).encode()}
        parquet.write_table(pyarrow.table(columns).replace_schema_metadata(metadata), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        sign = "," if path.suffix == ".csv" else "\t"
        path.write_text("".join(sign.join(map(str, row)) + "\n" for row in [names, *(row.values() for row in rows)]))


def write_shards(folder: Path, ending: str, rows: Sequence[Dict[str, Any]] = ROWS, **settings: Any) -> List[str]:
    """Writes rows as shards, of which the second is empty, and as one file `all`."""
    write_table(folder / f"all{ending}", rows, **settings)
    paths, begin = [], 0
    for number, size in enumerate(SIZES):
        paths.append(folder / f"train-{number:05d}-of-00003{ending}")
        write_table(paths[-1], rows[begin : begin + size], names=list(rows[0]), **settings)
        begin += size
    return list(map(str, paths))


def all_texts(splits: Any) -> List[List[str]]:
    return [[text for text, _ in part.pairs] for part in (splits.train, splits.val, splits.test)]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_shards_of_texts_are_read_as_one_table(tmp_path: Path, ending: str) -> None:
    paths = write_shards(tmp_path, ending, classes=["a", "b", "c"] if ending == ".parquet" else None)
    one = open_splits(Text(train=str(tmp_path / f"all{ending}"), weight="weight"))
    for train in (paths, str(tmp_path / f"train-*-of-00003{ending}")):
        for _ in range(2):  # the second time from the store
            many = open_splits(Text(train=train, weight="weight"))
            assert all_texts(many) == all_texts(one)
            assert many.class_names == one.class_names == (list("abc") if ending == ".parquet" else list("012"))
            for part, other in ((many.train, one.train), (many.test, one.test)):
                np.testing.assert_array_equal(part.read_labels(), other.read_labels())
                numbers = [int(text.split()[1]) for text, _ in part.pairs]
                assert part.read_weights().tolist() == [number + 1 for number in numbers]
                location = part.locations[0]
                file, row = (0, numbers[0]) if numbers[0] < SIZES[0] else (2, numbers[0] - SIZES[0])
                assert location.file == paths[file]
                assert (location.record if ending == ".parquet" else location.line - (ending != ".jsonl") - 1) == row


def test_shards_of_other_targets_are_read_as_one_table(tmp_path: Path) -> None:
    rows = [{**row, "label": ("a", "a;b", "b;c")[row["label"]]} for row in ROWS]
    paths = write_shards(tmp_path, ".csv", rows)
    one, many = (
        open_splits(Text(train=train, label="label").for_run(ClassSet)) for train in (str(tmp_path / "all.csv"), paths)
    )
    assert many.class_names == one.class_names == ["a", "b", "c"] and all_texts(many) == all_texts(one)
    np.testing.assert_array_equal(many.train.read_labels(), one.train.read_labels())
    paths = write_shards(tmp_path, ".csv")
    for label in ("label", ["label", "weight"]):
        one, many = (
            open_splits(Text(train=train, label=label).for_run(Number)) for train in (str(tmp_path / "all.csv"), paths)
        )
        assert all_texts(many) == all_texts(one)
        np.testing.assert_array_equal(many.train.read_labels(), one.train.read_labels())


def test_groups_of_folds_are_those_of_all_shards(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".csv", [{**row, "group": row["weight"] % 5} for row in ROWS])
    one, many = (
        open_splits(with_fold(Text(train=train, test_fraction=0.0), Fold(3, 1, groups="group")))
        for train in (str(tmp_path / "all.csv"), paths)
    )
    assert [text for text, _ in many.val.pairs] == [text for text, _ in one.val.pairs] != []


@pytest.mark.parametrize(
    "ending, changed, message",
    [
        (
            ".csv",
            [{"sentence": "a", "class": 1}],
            "columns sentence, class, and .*00000-of-00003.csv has sentence, ",
        ),
        (".parquet", [{"sentence": "a", "label": 1}], "columns sentence, label, and .*has sentence, label, weight"),
    ],
)
def test_shards_with_other_columns_are_refused(tmp_path: Path, ending: str, changed: Any, message: str) -> None:
    paths = write_shards(tmp_path, ending)
    write_table(Path(paths[2]), changed)
    with pytest.raises(DataError, match=f"00002-of-00003{ending} has the {message}"):
        open_splits(Text(train=paths))


def test_columns_may_have_another_order_unless_numbers_name_them(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".csv")
    write_table(Path(paths[2]), [dict(reversed(row.items())) for row in ROWS[14:]])
    assert all_texts(open_splits(Text(train=paths))) == all_texts(open_splits(Text(train=str(tmp_path / "all.csv"))))
    with pytest.raises(DataError, match="has the columns weight, label, sentence"):
        open_splits(Text(train=paths, sentence=0, label=1))


def test_shards_of_other_classes_or_kinds_are_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".parquet", classes=["a", "b", "c"])
    write_table(Path(paths[2]), ROWS[14:], ["b", "a", "c"])
    with pytest.raises(DataError, match=r"00002.*classes of 'label' \[b, a, c\], and those of .*00000.* \[a, b, c\]"):
        open_splits(Text(train=paths))
    write_table(Path(paths[2]), ROWS[14:])
    with pytest.raises(DataError, match="classes of 'label' not at all, and"):
        open_splits(Text(train=paths))
    write_shards(tmp_path, ".csv")
    with pytest.raises(DataError, match="all.csv and .*all.parquet are one split"):
        open_splits(Text(train=[str(tmp_path / "all.parquet"), str(tmp_path / "all.csv")], header=False))


def test_problems_name_the_shard(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".csv")
    (tmp_path / "again.csv").symlink_to(paths[2])
    with pytest.raises(DataError, match="00002-of-00003.csv' .train. and '.*again.csv' .val. are the same file"):
        open_splits(Text(train=paths, val=str(tmp_path / "agai*.csv")))
    rows = Path(paths[2]).read_text().splitlines()
    Path(paths[2]).write_text("\n".join([*rows[:3], "text 16,,17", *rows[4:]]))
    with pytest.raises(DataError, match="00002-of-00003.csv, line 4: 'label' is empty"):
        open_splits(Text(train=paths))
    Path(paths[1]).unlink()
    with pytest.raises(DataError, match="train-00001-of-00003.csv' is missing"):
        open_splits(Text(train=str(tmp_path / "train-*.csv")))


def test_the_first_empty_text_is_named_with_its_shard(tmp_path: Path, caplog: Any) -> None:
    rows = [{**row, "sentence": "" if row["weight"] in (17, 18) else row["sentence"]} for row in ROWS]
    paths = write_shards(tmp_path, ".csv", rows)
    open_splits(Text(train=paths))
    assert "3 files: 2 rows have an empty text, of which" in caplog.text
    assert "00002-of-00003.csv, line 4 is the first" in caplog.text


def test_running_text_is_read_from_shards(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".parquet")
    Path(paths[1]).unlink()
    with pytest.raises(DataError, match="train-00001-of-00003.parquet' is missing"):
        open_splits(PlainText(train=str(tmp_path / "train-*.parquet"), column="sentence"))
    write_table(Path(paths[1]), ROWS[:1])
    splits = open_splits(PlainText(train=str(tmp_path / "train-*.parquet"), column="sentence", val_fraction=0.2))
    texts = [text for part in (splits.train, splits.val) for text in part.training_texts().texts()]
    assert [text.strip() for text in texts] == [f"text {row}" for row in [*range(14), 0, *range(14, 30)]]


SENTENCES = [{"tokens": ["Ann", f"n{row}", "ran"], "ner_tags": ["B-PER", "I-PER", "O"]} for row in range(30)]


def write_sentences(path: Path, rows: Sequence[Dict[str, Any]]) -> None:
    if path.suffix == ".jsonl":
        write_table(path, rows)
        return
    if path.suffix == ".parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
        return
    lines = ["".join(f"{word} {tag}\n" for word, tag in zip(*row.values())) for row in rows]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".parquet"])
def test_shards_of_tagged_words_are_read_as_one_file(tmp_path: Path, ending: str) -> None:
    for name, rows in (("all", SENTENCES), ("train-0-of-2", SENTENCES[:14]), ("train-1-of-2", SENTENCES[14:])):
        write_sentences(tmp_path / f"{name}{ending}", rows)
    settings = {"root": str(tmp_path), "val": None, "test": None, "val_fraction": 0.2, "test_fraction": 0.2}
    one = open_splits(Conll(train=f"all{ending}", **settings))
    for train in (f"train-*{ending}", [f"train-0-of-2{ending}", f"train-1-of-2{ending}"]):
        many = open_splits(Conll(train=train, **settings))
        for part, other in ((many.train, one.train), (many.val, one.val), (many.test, one.test)):
            assert part.words.sentences == other.words.sentences and part.words.tags == other.words.tags
            row = int(part.words.sentences[0][1][1:])
            location = part.checks().location(0)
            assert location.file == str(tmp_path / f"train-{int(row >= 14)}-of-2{ending}")
            number = row % 14 if row < 28 else row - 14
            lines = {".txt": number * 4 + 1, ".jsonl": number + 1, ".parquet": None}
            assert location.line == lines[ending]
    # Without root, paths are relative to the current folder.
    assert len(open_splits(Conll(train=str(tmp_path / f"train-*{ending}"))).train.words) > 20
    assert len(open_splits(Conll(train=[str(tmp_path / f"train-*{ending}")])).train.words) > 20
    write_sentences(tmp_path / f"train-1-of-2{ending}", [{"tokens": ["a", "b"], "ner_tags": ["O", "I-PER"]}])
    with pytest.raises(DataError, match=f"train-1-of-2{ending}.* 'I-PER'"):
        open_splits(Conll(train=f"train-*{ending}", **settings))
    (tmp_path / f"train-1-of-2{ending}").unlink()
    with pytest.raises(DataError, match=f"train-1-of-2{ending}' is missing"):
        open_splits(Conll(train=f"train-*{ending}", **settings))


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_tags_of_shards_are_those_of_one_column(tmp_path: Path, ending: str) -> None:
    write_sentences(tmp_path / f"a{ending}", SENTENCES)
    write_sentences(tmp_path / f"b{ending}", [{"tokens": ["a"], "pos_tags": ["NN"]}])
    with pytest.raises(DataError, match=f"b{ending} has (no such column|the columns tokens, pos_tags)"):
        open_splits(Conll(root=str(tmp_path), train=[f"a{ending}", f"b{ending}"], val=None, test=None))
    with pytest.raises(DataError, match="has no c.txt.*There: a"):
        open_splits(Conll(root=str(tmp_path), train=[f"a{ending}", "c.txt"], val=None, test=None))


QUESTIONS = [
    {
        "id": f"q{row}",
        "context": f"the number {row // 2} is here",
        "question": f"which number in {row}",
        "answers": {"text": [str(row // 2)], "answer_start": [11]},
    }
    for row in range(40)
]


def in_squad_form(rows: Sequence[Dict[str, Any]]) -> str:
    """JSON as SQuAD 1.1 has it."""
    paragraphs = [
        {
            "context": row["context"],
            "qas": [
                {
                    "id": row["id"],
                    "question": row["question"],
                    "answers": [{"text": row["answers"]["text"][0], "answer_start": 11}],
                }
            ],
        }
        for row in rows
    ]
    return json.dumps({"data": [{"title": "a", "paragraphs": paragraphs}]})


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".parquet"])
def test_shards_of_questions_are_read_as_one_file(tmp_path: Path, ending: str) -> None:
    for name, rows in (("all", QUESTIONS), ("train-0-of-2", QUESTIONS[:15]), ("train-1-of-2", QUESTIONS[15:])):
        path = tmp_path / f"{name}{ending}"
        path.write_text(in_squad_form(rows)) if ending == ".json" else write_sentences(path, rows)
    settings = {"root": str(tmp_path), "val": None, "test": None, "val_fraction": 0.2, "test_fraction": 0.2}
    one = open_splits(Squad(train=f"all{ending}", **settings))
    for train in (f"train-*{ending}", [f"train-0-of-2{ending}", f"train-1-of-2{ending}"]):
        many = open_splits(Squad(train=train, **settings))
        for part, other in ((many.train, one.train), (many.val, one.val), (many.test, one.test)):
            both = [
                [(each.id, each.text, source.questions.contexts[each.context], each.answers) for each in questions]
                for source in (part, other)
                for questions in [source.questions.questions]
            ]
            assert both[0] == both[1] != []
            first = part.questions.questions[0]
            row = int(first.id[1:])
            assert first.location.file == str(tmp_path / f"train-{int(row >= 15)}-of-2{ending}")
            assert (first.location.line or first.location.record + 1) == (row % 15 if row < 30 else row - 15) + 1
    with pytest.raises(DataError, match="none.json is not there"):
        open_splits(Squad(train=[f"all{ending}", "none.json"], **settings))
    (tmp_path / f"train-1-of-2{ending}").unlink()
    with pytest.raises(DataError, match=f"train-1-of-2{ending}' is missing"):
        open_splits(Squad(train=f"train-*{ending}", **settings))


def test_ids_of_questions_may_not_repeat_in_another_shard(tmp_path: Path) -> None:
    write_table(tmp_path / "a.jsonl", QUESTIONS[:10])
    write_table(tmp_path / "b.jsonl", [QUESTIONS[3], *QUESTIONS[10:]])
    problems: List[Problem] = []
    read_squad_files([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], CollectedFindings(write=problems.append))
    assert [(found.kind, found.location.file, found.location.line) for found in problems] == [
        ("repeated_id", str(tmp_path / "b.jsonl"), 1)
    ]
    write_sentences(tmp_path / "a.parquet", QUESTIONS)
    write_sentences(tmp_path / "b.parquet", [{**row, "title": "a"} for row in QUESTIONS])
    with pytest.raises(DataError, match="b.parquet has the columns .*title"):
        read_squad_files([str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")])


def test_rows_of_questions_in_parquet_are_streamed(tmp_path: Path, monkeypatch: Any) -> None:
    order: List[str] = []

    def stream(*_: Any) -> Iterator[Any]:
        for row in QUESTIONS[:3]:
            order.append("read")
            yield 0, row

    class Noted(set):
        def add(self, element: str) -> None:
            order.append(element)

    monkeypatch.setattr(questions, "stream_objects", stream)
    assert len(questions.read_squad(str(tmp_path / "a.parquet"), known_ids=Noted())) == 3
    assert order == ["read", "q0", "read", "q1", "read", "q2"]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_paragraphs_of_masked_texts_are_rows(tmp_path: Path, ending: str) -> None:
    rows = [{**row, "sentence": "" if row["weight"] == 20 else row["sentence"]} for row in ROWS]
    paths = write_shards(tmp_path, ending, rows)
    write_table(Path(paths[1]), [{**ROWS[0], "sentence": "more"}])
    splits = open_splits(MaskedText(train=str(tmp_path / f"train-*{ending}"), column="sentence", val_fraction=0.2))
    parts = [splits.train, splits.val, splits.test]
    found = [text for part in parts if part is not None for text in part.training_texts().texts()]
    assert sorted(found) == sorted(["more", *(row["sentence"] for row in rows if row["sentence"])])
    for part in filter(None, parts):
        for index, text in enumerate(part.paragraphs.texts()):
            row = int(text.split()[1]) if " " in text else SIZES[0]
            location = part.locations[index]
            file, number = (1, 0) if text == "more" else (0, row) if row < SIZES[0] else (2, row - SIZES[0])
            assert location.file == paths[file] and (location.record or 0) + (location.line or 1) == number + 1
    with pytest.raises(DataError, match="no column 'text'"):
        open_splits(MaskedText(train=paths))
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match=f"all{ending} has a text per row, and .*a.txt a paragraph"):
        open_splits(MaskedText(train=[str(tmp_path / f"all{ending}"), str(tmp_path / "a.txt")]))
    other = ".parquet" if ending == ".jsonl" else ".jsonl"
    write_table(tmp_path / f"b{other}", ROWS)
    with pytest.raises(DataError, match="2 files end in .jsonl and .parquet: give files with the same extension"):
        open_splits(MaskedText(train=[str(tmp_path / f"all{ending}"), str(tmp_path / f"b{other}")]))
