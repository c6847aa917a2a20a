"""Images and texts with a number to predict each: tables in all formats, splits, settings, and generated data."""

import csv
import json
import math
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from mxtrain.cli.dispatch import run as main
from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.digits import read_digits
from mxtrain.data.loading.folds import Fold
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.spec import with_fold
from mxtrain.data.table.number_columns import find_number_columns, parse_column
from mxtrain.errors import CheckpointError, ConfigError, DataError
from mxtrain.model.mlp import MLP
from mxtrain.text.classification.glue import Glue
from mxtrain.text.classification.text import Text
from mxtrain.text.number_words import MAX_NUMBER, number_words, words_of_numbers
from mxtrain.types.kinds import ClassIndex, ClassSet, Number
from mxtrain.vision.classification.digit_angles import DigitAngles, rotate_digits
from mxtrain.vision.classification.image_table import ImageTable

pytestmark = pytest.mark.usefixtures("own_cache")
NUMBERS = [1.5, -2.0, 1234.5, 0.0, 7.25, 3.0, 100.0, -0.5]


@pytest.fixture
def images(tmp_path):
    """Writes eight images, and tables with the number of each; returns the folder."""
    for number in range(len(NUMBERS)):
        Image.new("L", (8, 8), 30 * number).save(tmp_path / f"{number}.png")
    rows = [(f"{number}.png", value) for number, value in enumerate(NUMBERS)]
    (tmp_path / "plain.csv").write_text("\n".join(["image,age", *(f"{name},{value}" for name, value in rows)]))
    cells = [f'{name}\t"{value:,}"' for name, value in rows]
    (tmp_path / "groups.tsv").write_text("\n".join(["image\tage", *cells]))
    comma = [f'{name};"{str(value).replace(".", ",")}"' for name, value in rows]
    (tmp_path / "comma.csv").write_text("\n".join(["image;age", *comma]))
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps({"image": name, "age": value}) for name, value in rows))
    table = pyarrow.table({"image": [name for name, _ in rows], "age": NUMBERS})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    return tmp_path


def number_images(**settings):
    return ImageTable(**{"image_size": [8, 8], "channels": 1, "val_fraction": 0.25, **settings}).for_run(Number)


def numbers_of_images(splits):
    """Returns the number of each image, by the grey value of the image."""
    found = {}
    for split in filter(None, (splits.train, splits.val, splits.test)):
        image_NCHW, number_N = split.fetch(np.arange(len(split)), seed=0, epoch=0, train=False)
        assert number_N.dtype == np.float32 and split.read_labels().tolist() == number_N.tolist()
        found.update(zip(image_NCHW[:, 0, 0, 0].tolist(), number_N.tolist()))
    return found


@pytest.mark.parametrize(
    "name, decimal",
    [
        ("plain.csv", "."),
        ("groups.tsv", "."),
        ("comma.csv", ","),
        ("lines.jsonl", "."),
        ("lines.jsonl", ","),
        ("rows.parquet", ","),
    ],
)
def test_tables_of_images_give_their_numbers(images, name, decimal):
    splits = number_images(train=str(images / name), decimal=decimal).open()
    assert numbers_of_images(splits) == {30 * number: value for number, value in enumerate(NUMBERS)}
    assert (len(splits.train), len(splits.val), list(splits.class_names)) == (6, 2, [])
    checked = splits.val.checks().check(0)
    assert not checked.problems and not checked.classes


@pytest.mark.parametrize(
    "line, said",
    [
        ("1.png,", "line 3: 'age' is '', a missing number. Give the number"),
        ("1.png,NA", "line 3: 'age' is 'NA', a missing number"),
        ("1.png,old", "line 3: 'age' is 'old', no number. Correct the cell"),
        ("1.png,1e39", "line 3: 'age' is 1e[+]39, and the largest number that is read is 3.4e[+]38"),
        ("1.png,inf", "line 3: 'age' is inf, no finite number"),
        ('1.png,"3,5"', "line 3: 'age' is '3,5', no number .with a decimal comma, dataset.decimal=',', it is 3.5"),
        ("1.png,5%", "line 3: 'age' is '5%': some of its cells have a percent sign"),
        ("9.png,3", "line 3 names '9.png', and there is no file"),
        ("0.png,3", "line 3 names .*0.png', as .*line 2 does: an image has one row"),
        ("1.png", "line 3: it has 1 column"),
    ],
)
def test_wrong_rows_of_images_are_named(images, line, said):
    path = images / "plain.csv"
    path.write_text(path.read_text().replace("1.png,-2.0", line))
    with pytest.raises(DataError, match=f"plain.csv, {said}"):
        number_images(train=str(path)).open()


def test_the_column_of_numbers_is_found_or_asked_for(images):
    path = images / "plain.csv"
    rows = path.read_text().splitlines()
    path.write_text("\n".join(["image,age,fold", *(f"{row},1" for row in rows[1:])]))
    with pytest.raises(
        DataError, match="name the column of .*plain.csv with the number to predict, or several. It has age"
    ):
        number_images(train=str(path)).open()
    assert 1234.5 in numbers_of_images(number_images(train=str(path), label="age").open()).values()
    with pytest.raises(DataError, match="dataset.label=aage.* Did you mean 'age'"):
        number_images(train=str(path), label="aage").open()
    assert find_number_columns("x.csv", None, ["image", "fold", "score", "label"], ["image"]) == ["label"]
    assert find_number_columns("x.jsonl", "later", ["image"], ["image"]) == ["later"]
    assert find_number_columns("x.jsonl", ["later", "x"], ["image"], ["image"]) == ["later", "x"]
    with pytest.raises(DataError, match="It has no column besides those of the samples"):
        find_number_columns("x.csv", None, ["image"], ["image"])
    for label, said in (
        ([], "name one or several different columns"),
        (["age", "age"], "name one or several different columns"),
        (["age", "image"], "names 'image', which cannot be predicted from itself"),
        (["age", "fol"], "Did you mean 'fold'"),
    ):
        with pytest.raises(DataError, match=f"dataset.label.*{said}"):
            find_number_columns(str(path), label, ["image", "age", "fold"], ["image"])
    with pytest.raises(DataError, match="name the table of the training images"):
        number_images().open()


def test_numbers_of_a_column_are_required_unless_they_may_be_missing():
    cells = ["1", " 2.5 ", "", "x"]
    parsed = parse_column("a", cells, [""], ".")
    assert parsed.is_wrong_R.tolist() == [False, False, True, True]
    assert [(row, remedy) for row, _, remedy in parsed.faults] == [(2, "Give the number."), (3, "Correct the cell.")]
    parsed = parse_column("a", cells, [""], ".", allows_missing=True)
    assert parsed.is_wrong_R.tolist() == [False, False, False, True] and math.isnan(parsed.number_R[2])


def test_images_with_a_number_are_neither_mirrored_nor_cut_by_default(images):
    path = str(images / "plain.csv")
    table = number_images(train=path)
    assert (table.augment.flip, table.augment.crop_scale, table.central_crop) == (False, [1.0, 1.0], 1.0)
    assert table.open().decoding.central_crop == 1.0
    chosen = number_images(train=path, augment={"flip": True, "crop_scale": [0.5, 0.75]}, central_crop=0.5)
    assert (chosen.augment.flip, chosen.augment.crop_scale, chosen.central_crop) == (True, [0.5, 0.75], 0.5)
    listed = number_images(train=path, augment={"transforms": ["flip"]})
    assert (listed.augment.flip, listed.augment.crop_scale) == (False, [1.0, 1.0])
    listed = ImageTable(train=path, augment={"transforms": ["flip"]}).for_run(ClassSet)
    assert (listed.augment.flip, listed.augment.crop_scale) == (False, [1.0, 1.0])
    classes = ImageTable(train=path).for_run(ClassSet)
    assert (classes.augment.flip, classes.augment.crop_scale, classes.central_crop) == (True, [0.25, 1.0], 0.875)


def scale_of(dataset):
    """Opens a dataset; returns its signature and its splits."""
    splits = dataset.open()
    return dataset.infer_signature(splits, MLP()), splits


def require_scale(dataset, number_N, val_N):
    """Requires that the signature has the scale of the training samples, and that resuming with another is refused."""
    signature, splits = scale_of(dataset)
    assert (signature.target_mean, signature.target_std) == pytest.approx((np.mean(number_N), np.std(number_N)))
    error = np.sqrt(np.mean((np.asarray(val_N, np.float64) - np.mean(number_N)) ** 2))
    assert f"root mean squared error {error:.6g}" in dataset.remark(signature, splits)
    kept = type(signature).from_json(json.loads(json.dumps(signature.to_json())))
    dataset.check_compatible(signature, kept, "here")
    changed = type(signature).from_json({**signature.to_json(), "target_mean": 1e6})
    with pytest.raises(CheckpointError, match="here was trained with targets of mean 1e[+]06"):
        dataset.check_compatible(signature, changed, "here")


def test_the_scale_of_images_is_that_of_the_training_samples(images):
    table = number_images(train=str(images / "plain.csv"))
    splits = table.open()
    require_scale(table, splits.train.read_labels().astype(float), splits.val.read_labels())


@pytest.fixture
def texts(tmp_path):
    """Writes eight pairs of texts with the number of each, in several formats; returns the folder."""
    rows = [(f"text {number}", f"other {number}", value) for number, value in enumerate(NUMBERS)]
    (tmp_path / "plain.csv").write_text("\n".join(["a,b,score", *(f"{a},{b},{value}" for a, b, value in rows)]))
    comma = [f"{a}\t{b}\t{str(value).replace('.', ',')}" for a, b, value in rows]
    (tmp_path / "comma.tsv").write_text("\n".join(["a\tb\tscore", *comma]))
    objects = [json.dumps({"a": a, "b": b, "score": value}) for a, b, value in rows]
    (tmp_path / "lines.jsonl").write_text("\n".join(objects))
    columns = dict(zip("ab", ([row[0] for row in rows], [row[1] for row in rows])))
    pyarrow.parquet.write_table(pyarrow.table({**columns, "score": NUMBERS}), tmp_path / "rows.parquet")
    return tmp_path


def number_texts(**settings):
    return Text(**{"sentence": "a", "label": "score", "val_fraction": 0.25, "test_fraction": 0, **settings}).for_run(
        Number
    )


@pytest.mark.parametrize(
    "name, decimal",
    [
        ("plain.csv", "."),
        ("comma.tsv", ","),
        ("lines.jsonl", "."),
        ("lines.jsonl", ","),
        ("rows.parquet", "."),
        ("rows.parquet", ","),
    ],
)
def test_tables_of_texts_give_their_numbers(texts, name, decimal):
    splits = number_texts(train=str(texts / name), decimal=decimal, sentence2="b").open()
    found = {
        pair: number
        for split in (splits.train, splits.val)
        for pair, number in zip(split.pairs, split.read_labels().tolist())
    }
    assert found == {(f"text {number}", f"other {number}"): value for number, value in enumerate(NUMBERS)}
    assert (len(splits.train), len(splits.val), splits.test, splits.class_names) == (6, 2, None, [])
    assert splits.train.read_labels().dtype == np.float32 and not splits.val.checks().check(0).classes


def test_texts_have_their_own_files_folds_and_scale(texts):
    path = str(texts / "plain.csv")
    (texts / "val.csv").write_text("a,b,score\nx,y,5\nz,y,-5\n")
    own = number_texts(train=path, val=str(texts / "val.csv"))
    splits = own.open()
    assert (len(splits.train), splits.val.read_labels().tolist()) == (8, [5.0, -5.0])
    require_scale(own, NUMBERS, [5, -5])
    groups = with_fold(number_texts(train=path), Fold(2, 1, False, "b"))
    parts = groups.open()
    assert len(parts.train) == len(parts.val) == 4
    without = with_fold(Text().for_run(Number), Fold(2, 1, False, "b"))
    with pytest.raises(DataError, match="these texts come from no file with such a column"):
        without.open()


@pytest.mark.parametrize(
    "cell, said",
    [
        ("", "line 3: 'score' is empty. Give the label"),
        ("NA", "line 3: 'score' is 'NA', a missing number"),
        ("good", "line 3: 'score' is 'good', no number"),
        ("-1e39", "line 3: 'score' is -1e[+]39, and the largest number"),
        ("5%", "line 3: 'score' is '5%': some of its cells have a percent sign"),
    ],
)
def test_wrong_rows_of_texts_are_named(texts, cell, said):
    path = texts / "plain.csv"
    path.write_text(path.read_text().replace("-2.0", cell))
    with pytest.raises(DataError, match=f"plain.csv, {said}"):
        number_texts(train=str(path)).open()


def test_wrong_columns_of_texts_are_named(texts):
    path = str(texts / "plain.csv")
    with pytest.raises(DataError, match="dataset.label=scor.* Did you mean 'score'"):
        number_texts(train=path, label="scor").open()
    with pytest.raises(DataError, match="dataset.sentence=c: .*there is no column 'c'"):
        number_texts(train=path, sentence="c").open()
    assert Text(train=path).for_run(ClassIndex).gives.targets[0] is ClassIndex


PAIRS = [(value, 10 * number) for number, value in enumerate(NUMBERS)]


def write_pairs(folder, name, decimal):
    """Writes a table of images and texts with two numbers each; returns its path."""
    rows = [{"image": f"{row}.png", "a": f"text {row}", "x": x, "y": y} for row, (x, y) in enumerate(PAIRS)]
    path = folder / name
    if name.endswith(".jsonl"):
        path.write_text("\n".join(map(json.dumps, rows)))
    elif name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        cells = ["\t".join(str(cell).replace(".", decimal) for cell in row.values()) for row in rows]
        path.write_text("\n".join(["image\ta\tx\ty", *cells]).replace(f"{decimal}png", ".png"))
    return str(path)


@pytest.mark.parametrize("kind", [number_images, number_texts])
@pytest.mark.parametrize(
    "name, decimal", [("pairs.tsv", "."), ("pairs.tsv", ","), ("p.jsonl", ","), ("p.parquet", ".")]
)
def test_several_numbers_are_targets_by_name(images, kind, name, decimal):
    dataset = kind(train=write_pairs(images, name, decimal), label=["x", "y"], decimal=decimal)
    splits = dataset.open()
    found = sorted(map(tuple, np.concatenate([part.read_labels() for part in (splits.train, splits.val)]).tolist()))
    assert found == sorted(map(tuple, np.float32(PAIRS).tolist()))
    assert splits.train.read_labels().shape == (6, 2) and not splits.train.checks().check(0).classes
    signature = dataset.infer_signature(splits, MLP())
    values = splits.train.read_labels().astype(np.float64)
    assert [target.name for target in signature.targets] == ["x", "y"]
    assert [target.mean for target in signature.targets] == pytest.approx(values.mean(axis=0))
    assert [target.std for target in signature.targets] == pytest.approx(values.std(axis=0))
    options = LoaderOptions(batch_size=4, train=False, seed=1, prefetch=0)
    (batch,) = dataset.build_loader(splits.val, signature, options).epoch(0)
    np.testing.assert_array_equal(batch.targets[0].asnumpy(), splits.val.read_labels()[batch.index_B])
    one = kind(train=write_pairs(images, name, decimal), label=["y"], decimal=decimal)
    assert one.open().train.read_labels().shape == (6, 1)


@pytest.mark.parametrize("kind", [number_images, number_texts])
def test_wrong_cells_of_several_numbers_are_named(images, kind):
    path = images / write_pairs(images, "pairs.tsv", ".")
    path.write_text(path.read_text().replace("-2.0\t10", "old\t10").replace("1234.5\t20", "NA\tnew"))
    with pytest.raises(DataError, match="pairs.tsv, line 3: 'x' is 'old', no number"):
        kind(train=str(path), label=["x", "y"]).open()
    path.write_text(path.read_text().replace("old", "2"))
    with pytest.raises(DataError, match="line 4: 'x' is 'NA', a missing number"):
        kind(train=str(path), label=["x", "y"]).open()
    path.write_text(path.read_text().replace("NA", "2"))
    with pytest.raises(DataError, match="line 4: 'y' is 'new', no number"):
        kind(train=str(path), label=["x", "y"]).open()


def test_rows_with_a_wrong_cell_in_any_column_are_left_out(images):
    path = images / write_pairs(images, "pairs.tsv", ".")
    path.write_text(path.read_text().replace("-2.0\t10", "old\t10").replace("1234.5\t20", "1\tnew"))
    findings = CollectedFindings()
    splits = number_images(train=str(path), label=["x", "y"]).examine(findings)
    assert len(splits.train) + len(splits.val) == 6 and sum(findings.counts.values()) == 2


def test_cached_numbers_belong_to_their_decimal_sign(texts):
    path = str(texts / "lines.jsonl")
    for decimal in ".,.":
        splits = number_texts(train=path, decimal=decimal).open()
        assert 7.25 in [*splits.train.read_labels(), *splits.val.read_labels()]


def test_several_numbers_need_names(images):
    with pytest.raises(ConfigError, match="the columns of dataset.label have no names"):
        number_texts(train=write_pairs(images, "pairs.tsv", "."), label=["x", "y"], header=False)
    with pytest.raises(ConfigError, match="a list of columns, which task=multi_label and task=regression read"):
        Text(train="x.csv", label=["x", "y"]).for_run(ClassIndex)


@pytest.mark.slow
@pytest.mark.parametrize("field", ["image", "a"])
def test_several_numbers_are_trained_evaluated_and_predicted(images, field, monkeypatch, capsys):
    monkeypatch.chdir(images)
    write_pairs(images, "pairs.tsv", ".")
    own = {
        "image": ("dataset=image_table", "dataset.image_size=8", "model=lenet", "model.channels=[4]"),
        "a": ("dataset=text", "dataset.sentence=a", "model=bert", "model.units=16", "model.num_heads=2"),
    }
    data = ("dataset.train=pairs.tsv", "dataset.label=[x,y]", "dataset.val_fraction=0.5", "dataset.batch_size=2")
    words = ("task=regression", *own[field], *data, "trainer.max_epochs=1", "logger=[tensorboard]", "hydra.run.dir=run")
    assert main(list(words)) == 0
    assert main(["eval", "run", "split=val"]) == 0
    values = json.loads((images / "run/eval/val/metrics.json").read_text())
    rows = list(csv.DictReader((images / "run/eval/val/predictions.csv").read_text().splitlines()))
    for name in "xy":
        errors = [float(row[f"predicted_{name}"]) - float(row[f"true_{name}"]) for row in rows]
        assert values[f"root_mean_squared_error/{name}"] == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-5)
    capsys.readouterr()
    (images / "t.txt").write_text("text 3\n")
    given = "3.png" if field == "image" else "t.txt"
    assert main(["predict", "run", given]) == 0
    expected = one_values(capsys.readouterr().out.splitlines()[-1])
    assert main(["export", "run", "limit_batches=1"]) == 0
    words = [sys.executable, "run/export/predict.py", given]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert one_values(done.stdout) == pytest.approx(expected, rel=1e-5), done.stderr


def one_values(row):
    """Returns the values of a row of predictions, by target."""
    return {name: cell["value"] for name, cell in json.loads(row)["values"].items()}


def test_similarities_of_glue_have_folds(tmp_path):
    (tmp_path / "STS-B").mkdir()
    names = ["genre", "sentence1", "sentence2", "score"]
    for name, count in (("train", 8), ("dev", 2)):
        rows = [[f"g{number % 4}", f"a {number}", f"b {number}", f"{number / 2:.3f}"] for number in range(count)]
        lines = ["\t".join(row) for row in [names, *rows]]
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    glue = Glue(root=str(tmp_path), task="stsb")
    assert glue.open().val.read_labels().tolist() == [0.0, 0.5]
    split = with_fold(glue, Fold(4, 1, False, "genre")).open().val
    first = sorted(split.read_labels().tolist())
    assert len(first) == 2 and first[1] - first[0] == 2.0


def test_numbers_in_words():
    expected = {
        0: "zero",
        19: "nineteen",
        20: "twenty",
        42: "forty-two",
        100: "one hundred",
        305: "three hundred and five",
        1000: "one thousand",
        2017: "two thousand and seventeen",
        9999: "nine thousand nine hundred and ninety-nine",
    }
    assert {number: number_words(number) for number in expected} == expected
    assert len({number_words(number) for number in range(MAX_NUMBER + 1)}) == MAX_NUMBER + 1
    texts, number_N = words_of_numbers(50)
    assert texts == [number_words(int(number)) for number in number_N] and len(set(texts)) == 50
    splits = Text().for_run(Number).open()
    assert min(map(len, (splits.train, splits.val, splits.test))) > 500
    assert splits.val.pairs[0] == (number_words(int(splits.val.read_labels()[0])), None)


def test_digits_are_rotated_by_their_angle():
    digit_DGG = read_digits()[0][:8, 0]
    made = rotate_digits(digit_DGG, 40, 30.0, 5)
    angle_N = made.read_labels()
    assert made.image_NCHW.shape == (40, 1, 24, 24) and angle_N.dtype == np.float32
    assert angle_N.min() < -15 and angle_N.max() > 15 and np.abs(angle_N).max() <= 30
    # The images belong to their angles: rotated back, they are one of the digits.
    upright = [np.asarray(Image.fromarray(digit).resize((16, 16), Image.Resampling.BILINEAR)) for digit in digit_DGG]
    for image_HW, angle in list(zip(made.image_NCHW[:, 0], angle_N.tolist()))[:10]:
        back = np.asarray(Image.fromarray(image_HW).rotate(-angle, Image.Resampling.BILINEAR))[4:20, 4:20]
        wrong = np.asarray(Image.fromarray(image_HW).rotate(angle, Image.Resampling.BILINEAR))[4:20, 4:20]
        errors = [min(np.abs(part.astype(float) - each).mean() for each in upright) for part in (back, wrong)]
        assert errors[0] < 20 and (errors[0] < errors[1] or abs(angle) < 5)


def test_rotated_digits_are_divided_before_images_are_made():
    dataset = DigitAngles(num_train=30, num_val=10)
    splits = dataset.open()
    assert tuple(map(len, (splits.train, splits.val, splits.test))) == (30, 10, 10)
    require_scale(dataset, splits.train.read_labels().astype(float), splits.val.read_labels())
    again = dataset.open()
    assert (again.train.image_NCHW == splits.train.image_NCHW).all()
    assert (DigitAngles(num_train=30, split_seed=1).open().train.image_NCHW != splits.train.image_NCHW).any()
    assert DigitAngles(num_train=30, test_fraction=0.0).open().test is None
