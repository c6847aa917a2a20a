"""Classes of rows of a table, any number for each row: columns of names and columns of 0 and 1, for images, texts and
tables."""

import json

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.checking.problems import STRICT
from mxtrain.data.table.class_sets import find_set_columns
from mxtrain.errors import ConfigError, DataError
from mxtrain.tables.feature_table import FeatureTable
from mxtrain.text.classification.text import Text
from mxtrain.types.kinds import ClassIndex, ClassSet, RowClass
from mxtrain.vision.classification.digit_sets import DigitSets, compose_digits
from mxtrain.vision.classification.image_table import ImageTable

pytestmark = pytest.mark.usefixtures("own_cache")
SETS = [["red", "dark"], [], ["dark"], ["noisy"], ["red"], ["red", "noisy"]]
NAMES = ["dark", "noisy", "red"]
TARGETS = [[int(name in names) for name in NAMES] for names in SETS]


@pytest.fixture
def images(tmp_path):
    """Writes the images of `SETS`, and tables that name them; returns the folder."""
    for number in range(len(SETS)):
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = [f"{number}.png," for number in range(len(SETS))]
    names = [f"{row}{'; '.join(each)}" for row, each in zip(rows, SETS)]
    (tmp_path / "names.csv").write_text("\n".join(["image,tags", *names]))
    ones = [f"{row}{','.join(map(str, target))}" for row, target in zip(rows, TARGETS)]
    (tmp_path / "ones.csv").write_text("\n".join(["image,dark,noisy,red", *ones]))
    objects = [json.dumps({"image": row[:-1], "labels": each}) for row, each in zip(rows, SETS)]
    (tmp_path / "lists.jsonl").write_text("\n".join(objects))
    return tmp_path


def everything(split):
    return split.fetch(np.arange(len(split)), seed=0, epoch=0, train=False)[1]


@pytest.mark.parametrize("name", ["names.csv", "ones.csv", "lists.jsonl"])
def test_tables_of_images_give_their_classes(images, name):
    table = ImageTable(train=str(images / name), val=str(images / name), image_size=[8, 8])
    with pytest.raises(DataError, match="are the same file"):
        table.examine(STRICT)
    splits = table.model_copy(update={"val": None, "val_fraction": 0.34}).examine(STRICT)
    assert list(splits.class_names) == NAMES
    found = {}
    for split in (splits.train, splits.val):
        for index, target_K in enumerate(everything(split).tolist()):
            location, checked = split.checks().location(index), split.checks().check(index)
            found[location.file.rpartition("/")[2]] = target_K
            assert list(checked.classes) == np.flatnonzero(target_K).tolist() and not checked.problems
    assert found == {f"{number}.png": target for number, target in enumerate(TARGETS)}


@pytest.mark.parametrize(
    "line, said",
    [
        ("9.png,red", r"names.csv, line 8 names '9.png', and there is no file"),
        ("0.png,dark", r"line 8 names .*0.png', as .*line 2 does"),
        ("", ""),
        ("1.png,red;;dark", r"line 8: 'tags' is 'red;;dark', with an empty name"),
    ],
)
def test_wrong_rows_of_images_are_named(images, line, said):
    path = images / "names.csv"
    path.write_text(f"{path.read_text()}\n{line}\n")
    table = ImageTable(train=str(path), image_size=[8, 8], val_fraction=0.34)
    if said:
        with pytest.raises(DataError, match=said):
            table.examine(STRICT)
    else:
        assert len(table.examine(STRICT).train) == 4


def test_unknown_classes_and_values_are_named(images):
    (images / "7.png").write_bytes((images / "1.png").read_bytes())
    (images / "val.csv").write_text("image,tags\n7.png,redd\n")
    table = ImageTable(train=str(images / "names.csv"), val=str(images / "val.csv"), image_size=[8, 8])
    with pytest.raises(DataError, match=r"val.csv, line 2 has the class 'redd'. Did you mean 'red'"):
        table.examine(STRICT)
    path = images / "ones.csv"
    path.write_text(path.read_text().replace("2.png,1", "2.png,yes"))
    with pytest.raises(DataError, match=r"ones.csv, line 4: 'dark' is 'yes'; allowed are 0 and 1"):
        ImageTable(train=str(path), image_size=[8, 8]).examine(STRICT)
    with pytest.raises(DataError, match="there is no column 'picture'"):
        ImageTable(train=str(path), image="picture").examine(STRICT)
    with pytest.raises(DataError, match="name the table of the training images"):
        ImageTable().examine(STRICT)


@pytest.mark.parametrize(
    "cells, delimiter, said",
    [
        (["a|b", "c;d"], "auto", r"hold '\|' and ';', so it is not clear"),
        (["a b", "c"], "auto", r"hold spaces. Type \"dataset.delimiter=' '\""),
        (["a", "a"], "auto", "has only the class 'a'"),
        (["", ""], "|", "has no class"),
        (["a b", "c"], " ", ["a", "b", "c"]),
        (["a b", "c"], "|", ["a b", "c"]),
        (["a, b", "c"], "auto", ["a", "b", "c"]),
        (["a", "c"], "auto", ["a", "c"]),
    ],
)
def test_delimiters_are_recognised_or_asked_for(tmp_path, cells, delimiter, said):
    path = tmp_path / "x.tsv"
    path.write_text("\n".join(["x\tlabels", *(f"1\t{cell}" for cell in cells)]))
    if isinstance(said, list):
        assert list(find_set_columns(str(path), None, delimiter, ["x"]).class_names) == said
        return
    with pytest.raises(DataError, match=said):
        find_set_columns(str(path), None, delimiter, ["x"])


def test_names_in_lists_may_hold_delimiters(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"labels": ["a, b"]}\n{"labels": ["c"]}\n{"labels": []}\n')
    assert list(find_set_columns(str(path), None, "auto", []).class_names) == ["a, b", "c"]
    path.write_text('{"labels": ["a", 3]}\n')
    with pytest.raises(DataError, match="a list or an object, which is no text"):
        find_set_columns(str(path), None, "auto", [])


def test_an_empty_name_in_a_list_is_shown(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"sentence": "x", "label": ["a", ""]}\n{"sentence": "y", "label": ["b"]}\n' * 4)
    with pytest.raises(DataError, match=r"line 1: 'label' is \['a', ''\], with an empty name"):
        Text(train=str(path)).for_run(ClassSet).examine(STRICT)


def test_too_few_columns_of_classes_are_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("image,red\n1.png,1\n")
    with pytest.raises(DataError, match="has no two columns of classes besides image"):
        find_set_columns(str(path), None, "auto", ["image"])
    with pytest.raises(DataError, match="there is no column 'rad'. Did you mean 'red'"):
        find_set_columns(str(path), ["red", "rad"], "auto", ["image"])
    with pytest.raises(DataError, match="dataset.label names 'red' twice. Each class has one column"):
        find_set_columns(str(path), ["red", "red"], "auto", ["image"])
    with pytest.raises(DataError, match="dataset.delimiter is empty. Type the text between two names"):
        find_set_columns(str(path), "red", "", ["image"])


def test_texts_give_their_classes(tmp_path):
    path = tmp_path / "x.csv"
    lines = [f"text {number},{','.join(map(str, target))}" for number, target in enumerate(TARGETS)]
    path.write_text("\n".join(["sentence,dark,noisy,red", *lines]))
    text = Text(train=str(path), val_fraction=0.2, test_fraction=0.2, label=NAMES)
    with pytest.raises(ConfigError, match="a list of columns, which task=multi_label and task=regression read"):
        text.for_run(ClassIndex)
    with pytest.raises(ConfigError, match="reads tables with names of columns"):
        Text(train=str(path), header=False).for_run(ClassSet)
    splits = text.for_run(ClassSet).examine(STRICT)
    assert list(splits.class_names) == NAMES and [len(splits.val), len(splits.test)] == [1, 1]
    found = {}
    for split in (splits.train, splits.val, splits.test):
        for index, (pair, target_K) in enumerate(zip(split.pairs, split.read_labels().tolist())):
            found[int(pair[0].split()[1])] = target_K
            assert list(split.checks().check(index).classes) == np.flatnonzero(target_K).tolist()
    assert found == dict(enumerate(TARGETS))
    with pytest.raises(DataError, match="Python's reference has one class for each text"):
        Text().for_run(ClassSet).examine(STRICT)


def table_of(tmp_path, kind, change=lambda text: text):
    path = tmp_path / "x.csv"
    if kind == "names":
        lines = ["a,b,labels", *(f"{number},x{number % 2},{'|'.join(names)}" for number, names in enumerate(SETS))]
        settings = {"target": "labels"}
    else:
        lines = ["a,b,dark,noisy,red"]
        lines += [f"{number},x{number % 2},{','.join(map(str, row))}" for number, row in enumerate(TARGETS)]
        settings = {"targets": NAMES}
    path.write_text(change("\n".join(lines)))
    return FeatureTable(train=str(path), val_fraction=0.2, test_fraction=0.2, columns={"a": "number"}, **settings)


@pytest.mark.parametrize("kind", ["names", "ones"])
def test_rows_of_tables_give_their_classes(tmp_path, kind):
    splits = table_of(tmp_path, kind).for_run(ClassSet).examine(STRICT)
    assert list(splits.class_names) == NAMES
    found = {}
    for split in (splits.train, splits.val, splits.test):
        for number, target_K in enumerate(split.read_labels().tolist()):
            store, _, row = split.by_store(np.array([number]))[0]
            found[int(store.number_RN[row[0], list(store.numbers).index("a")])] = target_K
    assert found == dict(enumerate(TARGETS))
    assert [column.name for column in splits.build_columns().columns] == ["a", "b"]


def test_columns_of_true_and_false_are_read(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,red,dark\n" + "".join(f"{n},{n % 3 == 0},{str(n % 2 == 0).lower()}\n" for n in range(12)))
    table = FeatureTable(train=str(path), targets=["red", "dark"])
    splits = table.for_run(ClassSet).examine(STRICT)
    counts = sum(split.read_labels().sum(axis=0) for split in (splits.train, splits.val, splits.test))
    assert counts.tolist() == [4, 6]


def test_missing_cells_of_tables_are_no_classes(tmp_path, caplog):
    path = tmp_path / "x.csv"
    path.write_text("a,labels\n" + "".join(f"{n},{['red', 'None', 'dark|red', ''][n % 4]}\n" for n in range(24)))
    caplog.set_level("INFO")
    splits = FeatureTable(train=str(path), target="labels").for_run(ClassSet).examine(STRICT)
    assert list(splits.class_names) == ["dark", "red"]
    assert "'None' in 'labels' is read as a missing value" in caplog.text
    assert any(
        "None" in name
        for name in FeatureTable(train=str(path), target="labels", missing=[""])
        .for_run(ClassSet)
        .examine(STRICT)
        .class_names
    )


def test_wrong_settings_and_rows_of_tables_are_named(tmp_path):
    with pytest.raises(ConfigError, match="which task=regression and task=multi_label read"):
        table_of(tmp_path, "ones").for_run(RowClass)
    table = table_of(tmp_path, "ones", lambda text: text.replace("2,x0,1", "2,x0,0.5"))
    with pytest.raises(DataError, match=r"line 4: 'dark' is '0.5'; allowed are 0 and 1"):
        table.for_run(ClassSet).examine(STRICT)
    table = table_of(tmp_path, "ones", lambda text: text.replace("2,x0,1", "2,x0,no"))
    with pytest.raises(DataError, match=r"line 4: 'dark' is 'no'; allowed are 0 and 1"):
        table.for_run(ClassSet).examine(STRICT)
    table = table_of(tmp_path, "ones", lambda text: text.replace("2,x0,1", "2,x0,"))
    with pytest.raises(DataError, match=r"line 4: 'dark' is empty or a missing value; allowed are 0 and 1"):
        table.for_run(ClassSet).examine(STRICT)
    table = table_of(tmp_path, "names", lambda text: text.replace("red|dark", "red||dark"))
    with pytest.raises(DataError, match=r"line 2: 'labels' is 'red\|\|dark', with an empty name"):
        table.for_run(ClassSet).examine(STRICT)
    table = table_of(tmp_path, "names").model_copy(update={"target": "label"})
    with pytest.raises(DataError, match=r"dataset.target=label: .* Type dataset.target=labels"):
        table.for_run(ClassSet).examine(STRICT)
    table = table_of(tmp_path, "ones").model_copy(update={"targets": ["rad", "dark"]})
    with pytest.raises(DataError, match="dataset.targets=rad: .* Type dataset.targets=red"):
        table.for_run(ClassSet).examine(STRICT)
    table = table_of(tmp_path, "names")
    (tmp_path / "val.csv").write_text("a,b,labels\n1,x1,red|rod\n")
    table = table.model_copy(update={"val": str(tmp_path / "val.csv")})
    with pytest.raises(DataError, match=r"val.csv, line 2 has the class 'rod'. Did you mean 'red'"):
        table.for_run(ClassSet).examine(STRICT)
    table = table_of(tmp_path, "ones").model_copy(update={"features": ["a", "red"]})
    with pytest.raises(DataError, match="names 'red', which is predicted"):
        table.for_run(ClassSet).examine(STRICT)
    with pytest.raises(ConfigError, match="takes the classes from the training rows"):
        table_of(tmp_path, "names").model_copy(update={"classes": ["a", "b"]}).for_run(ClassSet)


def test_digits_of_an_image_are_its_classes():
    digits = np.arange(1, 4)[:, None, None] * np.ones((1, 8, 8), int) * 10
    source = compose_digits(digits.astype(np.uint8), np.array([7, 0, 2]), 50, 3)
    images, targets = source.fetch(np.arange(50), seed=0, epoch=0, train=False)
    for image, target_K in zip(images, targets):
        values = set(np.unique(image).tolist()) - {0}
        assert {{10: 7, 20: 0, 30: 2}[value] for value in values} == set(np.flatnonzero(target_K).tolist())
    assert sorted({int((image > 0).sum()) // 64 for image in images}) == [0, 1, 2, 3, 4]
    assert list(source.checks().check(1).classes) == np.flatnonzero(targets[1]).tolist()
    assert (source.image_NCHW != compose_digits(digits.astype(np.uint8), np.array([7, 0, 2]), 50, 4).image_NCHW).any()


def test_digit_sets_divide_the_digits():
    splits = DigitSets(num_train=30, num_val=10).open()
    assert (len(splits.train), len(splits.val), len(splits.test)) == (30, 10, 10) and splits.shape == (1, 16, 16)
    cells = [
        {
            image[0, y : y + 8, x : x + 8].tobytes()
            for image in split.image_NCHW
            for y in (0, 8)
            for x in (0, 8)
            if image[0, y : y + 8, x : x + 8].any()
        }
        for split in (splits.train, splits.val, splits.test)
    ]
    assert not cells[0] & cells[1] and not cells[0] & cells[2] and not cells[1] & cells[2]
