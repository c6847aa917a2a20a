"""Numbers of classes in Parquet with names in the metadata of Hugging Face's datasets, in tables of features."""

import json
import logging

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.exported_folder import ExportedFolder
from mxtrain.data.features import exported_rows, feature_store
from mxtrain.data.features.feature_store import open_store
from mxtrain.data.spec import open_splits
from mxtrain.data.table import column_kinds, target_classes
from mxtrain.data.table.columns import stream_rows
from mxtrain.data.table.target_classes import find_classes
from mxtrain.errors import DataError
from mxtrain.model.mlp import MLP
from mxtrain.tables.feature_table import ClassSetTable, FeatureTable, NumericFeatureTable
from mxtrain.tables.number_table import NumberTable
from mxtrain.text.classification.text import NumberTexts
from mxtrain.types.kinds import ClassSet
from mxtrain.vision.classification.image_table import ImageTable, NumberImages

pytestmark = pytest.mark.usefixtures("own_cache")
pyarrow = pytest.importorskip("pyarrow")
COLORS, DIGITS, KINDS = ["red", "green", "blue"], ["7", "8"], ["dog", "cat"]


def write_parquet(path, named=True, **changes):
    """Writes a table as Hugging Face's datasets does: numbers of classes, and their names in the metadata."""
    import pyarrow.parquet

    count = 60
    columns = {
        "color": [row % 3 for row in range(count)],
        "digit": [row % 2 for row in range(count)],
        "size": [row / 8 for row in range(count)],
        "kind": [(row // 2) % 2 for row in range(count)],
        **changes,
    }
    labels = {"color": COLORS, "digit": DIGITS, "kind": KINDS}
    features = {name: {"names": names, "_type": "ClassLabel"} for name, names in labels.items()}
    features["size"] = {"dtype": "float64", "_type": "Value"}
    features["tags"] = {"feature": {"names": COLORS, "_type": "ClassLabel"}, "_type": "List"}
    table = pyarrow.table(columns)
    if named:
        features = {name: feature for name, feature in features.items() if name in columns}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(table, path)
    return str(path)


def texts_of(splits, name):
    (store,) = splits.train.stores
    codes = store.code_RF[:, store.codes.index(name)]
    return [["", *store.texts[name]][code] for code in codes]


def test_features_and_target_are_names(tmp_path):
    splits = open_splits(FeatureTable(train=write_parquet(tmp_path / "train.parquet"), target="kind"))
    assert list(splits.class_names) == ["cat", "dog"]
    (store,) = splits.train.stores
    assert texts_of(splits, "color")[:4] == ["red", "green", "blue", "red"]
    assert texts_of(splits, "digit")[:2] == ["7", "8"] and list(store.numbers) == ["size"]
    assert store.label_R[:4].tolist() == [1, 1, 0, 0]


def test_a_row_without_a_class_is_missing_and_a_class_without_a_name_is_refused(tmp_path):
    color = [-1, *[row % 3 for row in range(59)]]
    splits = open_splits(FeatureTable(train=write_parquet(tmp_path / "a.parquet", color=color), target="kind"))
    assert texts_of(splits, "color")[:2] == ["", "red"]
    with pytest.raises(Exception, match="'color' has the class 3, and its metadata names 3 classes, from 0 to 2"):
        open_splits(FeatureTable(train=write_parquet(tmp_path / "b.parquet", color=[3] * 60), target="kind"))


def test_numbers_that_a_setting_asks_for_are_said(tmp_path, caplog):
    path = write_parquet(tmp_path / "train.parquet")
    with caplog.at_level(logging.INFO):
        splits = open_splits(FeatureTable(train=path, target="kind", columns={"color": "number"}))
    (store,) = splits.train.stores
    assert store.number_RN[:3, store.numbers.index("color")].tolist() == [0.0, 1.0, 2.0]
    assert "'color' holds numbers of the classes 'red', 'green' and 'blue', which are read as numbers" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        open_splits(NumberTable(train=path, target="size", features=["color"]))
    assert "'color' holds numbers of the classes" in caplog.text and "'kind' holds" not in caplog.text


REGRESSIONS = {
    "number_table": lambda path, target: NumberTable(train=path, target=target, features=["size"]),
    "feature_table": lambda path, target: NumericFeatureTable(train=path, target=target),
    "feature_table_of_several": lambda path, target: NumericFeatureTable(train=path, targets=[target, "size"]),
    "text": lambda path, target: NumberTexts(train=path, sentence="note", label=target),
    "text_of_several": lambda path, target: NumberTexts(train=path, sentence="note", label=[target, "size"]),
    "image_table": lambda path, target: NumberImages(train=path, label=target),
}


@pytest.mark.parametrize("build", REGRESSIONS.values(), ids=REGRESSIONS)
def test_numbers_of_classes_are_no_numbers_to_predict(build, tmp_path):
    path = write_parquet(tmp_path / "train.parquet", note=["a b"] * 60, image=["a.png"] * 60)
    with pytest.raises(DataError, match="=color: .*numbers of the classes 'red', 'green' and 'blue'.*task=tabular"):
        open_splits(build(path, "color"))


@pytest.mark.parametrize("name", ["number_table", "feature_table", "text", "text_of_several"])
def test_classes_whose_names_are_numbers_are_predicted_by_name(name, tmp_path):
    path = write_parquet(tmp_path / "train.parquet", note=[f"a b {row}" for row in range(60)])
    train = open_splits(REGRESSIONS[name](path, "digit")).train
    targets = train.read_labels() if hasattr(train, "read_labels") else train.target_N
    assert set(np.reshape(targets, (len(train), -1))[:, 0]) == {7.0, 8.0}


def test_lists_of_classes_of_images_are_names(tmp_path):
    for number in range(60):
        Image.new("L", (4, 4), number).save(tmp_path / f"{number}.png")
    images = [f"{number}.png" for number in range(60)]
    path = write_parquet(tmp_path / "train.parquet", image=images, tags=[[0], [1, 2], []] * 20)
    splits = open_splits(ImageTable(train=path, label="tags").for_run(ClassSet))
    assert list(splits.class_names) == sorted(COLORS)


def test_a_file_without_names_has_numbers(tmp_path):
    splits = open_splits(FeatureTable(train=write_parquet(tmp_path / "train.parquet", named=False), target="kind"))
    assert list(splits.class_names) == ["0", "1"]
    assert list(splits.train.stores[0].numbers) == ["color", "digit", "size"]


def test_counts_and_rows_that_earlier_versions_cached_are_not_used(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "train.parquet")
    layout = FeatureTable(train=path, target="kind").layout(path, [("color", "category")], False)

    def read_numbers(*arguments, **options):
        return stream_rows(*arguments[:8], **{name: value for name, value in options.items() if "classes" not in name})

    with monkeypatch.context() as patch:
        for module in (feature_store, column_kinds):
            patch.setattr(module, "stream_rows", read_numbers)
        for module in (feature_store, target_classes):
            patch.setattr(module, "classes_in", lambda path: {})
        assert find_classes(path, "kind", [""]) == ["0", "1"]
        assert open_store(path, layout).texts == {"color": ["0", "1", "2"]}
    assert find_classes(path, "kind", [""]) == ["cat", "dog"]
    assert open_store(path, layout).texts == {"color": COLORS}


@pytest.mark.parametrize("tags", [[[0], [1, 2], []] * 20, [0, 1, 2] * 20])
def test_classes_of_multi_label_tables_are_names(tmp_path, tags):
    path = write_parquet(tmp_path / "train.parquet", tags=tags)
    if not isinstance(tags[0], list):
        path = write_parquet(tmp_path / "train.parquet")
    target = "tags" if isinstance(tags[0], list) else "color"
    splits = open_splits(ClassSetTable(train=path, target=target))
    assert list(splits.class_names) == sorted(COLORS)
    sets = splits.train.stores and splits.train.read_labels()
    rows = splits.train.stores[0].number_RN[splits.train.row_N, 0] * 8
    expected = {
        "tags": {0: [0, 0, 1], 1: [1, 1, 0], 2: [0, 0, 0]},
        "color": {0: [0, 0, 1], 1: [0, 1, 0], 2: [1, 0, 0]},
    }[target]
    assert all(found.tolist() == expected[int(row) % 3] for found, row in zip(sets, rows))


def test_exported_readers_take_names_and_parquet(tmp_path):
    path = write_parquet(tmp_path / "train.parquet")
    dataset = FeatureTable(train=path, target="kind")
    splits = open_splits(dataset)
    signature = dataset.infer_signature(splits, MLP())
    values = {
        "signature": signature.to_json(),
        "inputs": [{"name": "ids", "dtype": "int32"}, {"name": "numbers", "dtype": "float32"}],
    }
    folder = ExportedFolder.__new__(ExportedFolder)
    folder.signature = values
    with open(path, "rb") as file:
        from_parquet = exported_rows.inputs_of_file(folder, file.read(), "x.parquet")
    row = {"color": "red", "digit": "7", "size": 0.0}
    from_json = exported_rows.inputs_of_file(folder, json.dumps(row).encode(), "x.jsonl")
    for name, array in from_json.items():
        np.testing.assert_array_equal(array, from_parquet[name])
    other = exported_rows.inputs_of_file(folder, json.dumps({**row, "color": "0"}).encode(), "x.jsonl")
    assert not np.array_equal(other["ids"], from_json["ids"])
