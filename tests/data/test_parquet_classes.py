"""Numbers of classes in Parquet files of Hugging Face's datasets become the names in the files' metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from mxtrain.data.spec import open_splits
from mxtrain.data.table.columns import stream_objects, stream_rows
from mxtrain.errors import DataError
from mxtrain.text.classification.text import Text
from mxtrain.text.token_classification.conll import Conll
from mxtrain.types.kinds import ClassSet

pytestmark = pytest.mark.usefixtures("own_cache")
LABELS = {"names": ["neg", "pos"], "_type": "ClassLabel"}
TAGS = {"names": ["O", "B-PER", "I-PER"], "_type": "ClassLabel"}


def write(path: Path, columns: Dict[str, List[Any]], features: Any) -> Path:
    """Writes a file with the metadata that `Dataset.to_parquet` of datasets 5.2.0 writes."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    content = features if isinstance(features, bytes) else json.dumps({"info": {"features": features}}).encode()
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata({b"huggingface": content}), path)
    return path


def test_labels_of_texts_have_their_names(tmp_path: Path) -> None:
    columns = {"text": [f"text {row}" for row in range(20)], "label": [row % 2 for row in range(20)]}
    path = write(tmp_path / "train.parquet", columns, {"text": {"dtype": "string", "_type": "Value"}, "label": LABELS})
    splits = open_splits(Text(train=str(path), sentence="text"))
    assert splits.class_names == ["neg", "pos"]
    assert {int(text.split()[1]) % 2 for text, _ in splits.train.pairs} == {0, 1}
    assert all(
        splits.class_names[label] == ("pos" if int(text.split()[1]) % 2 else "neg")
        for (text, _), label in zip(splits.train.pairs, splits.train.read_labels())
    )
    # Other tables keep the numbers.
    assert [row for _, row in stream_rows(path, ["label"], True)][:2] == [("0",), ("1",)]


@pytest.mark.parametrize(
    "feature",
    [{"feature": TAGS, "_type": "List"}, {"feature": TAGS, "length": -1, "_type": "Sequence"}, [TAGS]],
)
def test_lists_of_tags_have_their_names(tmp_path: Path, feature: Any) -> None:
    columns = {"tokens": [["Ann", "B", "ran"], ["x"]] * 6, "ner_tags": [[1, 2, 0], [0]] * 6}
    path = write(tmp_path / "train.parquet", columns, {"ner_tags": feature})
    rows = [row for _, row in stream_objects(path, ["tokens", "ner_tags"])]
    assert rows[:2] == [
        {"tokens": ["Ann", "B", "ran"], "ner_tags": ["B-PER", "I-PER", "O"]},
        {"tokens": ["x"], "ner_tags": ["O"]},
    ]
    dataset = Conll(root=str(tmp_path), train="train.parquet", val=None, test=None, word="tokens", tag="ner_tags")
    assert set(open_splits(dataset).class_names) == {"O", "B-PER", "I-PER"}


def test_rows_without_a_class_and_unknown_classes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": ["a", "b"], "label": [0, -1]}, {"label": LABELS})
    with pytest.raises(DataError, match="'label' is null, which is no text"):
        list(stream_rows(path, ["text", "label"], True, names_classes=True))
    path = write(tmp_path / "b.parquet", {"text": ["a", "b"], "label": [0, 2]}, {"label": LABELS})
    with pytest.raises(DataError, match="'label' has the class 2, and its metadata names 2 classes, from 0 to 1"):
        list(stream_rows(path, ["text", "label"], True, names_classes=True))


@pytest.mark.parametrize(
    "features",
    [
        b"no json",
        b"[1]",
        b'{"info": {"features": []}}',
        b"[" * 100_000,
        {"label": {"names": [1, 2], "_type": "ClassLabel"}},
        {"label": {"names": ["a", "b"], "_type": "Value"}},
        {"label": "ClassLabel"},
        {"label": []},
    ],
    ids=str,
)
def test_other_metadata_change_nothing(tmp_path: Path, features: Any) -> None:
    path = write(tmp_path / "a.parquet", {"label": [0, 1]}, features)
    assert [row for _, row in stream_rows(path, ["label"], True, names_classes=True)] == [("0",), ("1",)]


def test_lists_of_classes_have_their_names(tmp_path: Path) -> None:
    rows = [[0, 1], [1], [], [0]] * 6
    columns = {"sentence": [f"text {row}" for row in range(24)], "labels": rows, "other": rows}
    path = write(tmp_path / "train.parquet", columns, {"labels": {"feature": LABELS, "_type": "List"}})
    splits = open_splits(Text(train=str(path), label="labels").for_run(ClassSet))
    assert splits.class_names == ["neg", "pos"]
    for (text, _), classes in zip(splits.train.pairs, splits.train.read_labels().tolist()):
        assert classes == [int(number in rows[int(text.split()[1])]) for number in range(2)]
    with pytest.raises(DataError, match=r"record 0 of .*'other' is a list"):
        open_splits(Text(train=str(path), label="other").for_run(ClassSet))
    with pytest.raises(DataError, match="the column 'labels' is of the type list"):
        open_splits(Text(train=str(path), sentence="labels", label="sentence"))
    columns = {"sentence": [f"text {row}" for row in range(8)], "label": [0, 1] * 4, "more": [1, 1, 0, 0] * 2}
    path = write(tmp_path / "flags.parquet", columns, {"label": {**LABELS, "names": ["no", "yes"]}})
    splits = open_splits(Text(train=str(path), label=["label", "more"], test_fraction=0.0).for_run(ClassSet))
    assert splits.class_names == ["label", "more"] and splits.train.read_labels().max() == 1
