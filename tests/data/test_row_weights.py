"""Weights of images and texts by a column of their table: in batches, loss and metrics; wrong weights are named."""

import csv
import json
from pathlib import Path

import numpy as np
import pydantic
import pytest
from PIL import Image
from sklearn import metrics as reference

from mxtrain.cli.dispatch import run as main
from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.sample_weights import weights_of
from mxtrain.errors import ConfigError, DataError
from mxtrain.model.mlp import MLP
from mxtrain.text.classification.text import Text
from mxtrain.types.kinds import ClassIndex, ClassSet, Number
from mxtrain.vision.classification.image_table import ImageTable

pytestmark = pytest.mark.usefixtures("own_cache")
COUNT = 40
WEIGHTS = [number % 4 + 0.5 * (number % 2) for number in range(COUNT)]
KINDS = {
    "images, number": lambda folder, **more: images(folder, label="value", **more).for_run(Number),
    "images, classes": lambda folder, **more: images(folder, label="tags", **more).for_run(ClassSet),
    "texts, number": lambda folder, **more: texts(folder, label="value", **more).for_run(Number),
    "texts, class": lambda folder, **more: texts(folder, label="kind", **more).for_run(ClassIndex),
    "texts, classes": lambda folder, **more: texts(folder, label="tags", **more).for_run(ClassSet),
}
SHORT = ("trainer.max_epochs=1", "trainer.test=false", "early_stopping=off", "logger=[]", "hydra.run.dir=run")
IMAGES = ("dataset=image_table", "dataset.label=value", "dataset.image_size=8", "model=lenet", "model.channels=[4]")
TEXTS = (
    "dataset=text",
    "dataset.label=value",
    "model=bert",
    "model.num_layers=1",
    "model.units=16",
    "model.num_heads=2",
)


@pytest.fixture
def folder(tmp_path):
    """Writes images, and a table with the text, the targets and the weight of each."""
    rows = ["image,sentence,value,kind,tags,w"]
    for number, weight in enumerate(WEIGHTS):
        Image.new("L", (8, 8), 6 * number).save(tmp_path / f"{number}.png")
        kind, tags = "abc"[number % 3], "|".join("pq"[: number % 3])
        rows.append(f"{number}.png,{'word ' * (number % 7 + 1)}{number},{number / 2},{kind},{tags},{weight}")
    (tmp_path / "train.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def images(folder, **settings):
    chosen = {"train": str(folder / "train.csv"), "weight": "w", "image_size": [8, 8], "channels": 1, **settings}
    return ImageTable(**chosen)


def texts(folder, **settings):
    return Text(**{"train": str(folder / "train.csv"), "weight": "w", "test_fraction": 0, **settings})


@pytest.mark.parametrize("name", KINDS)
def test_batches_have_the_weights_of_their_samples_last(folder, name):
    dataset = KINDS[name](folder)
    splits = dataset.open()
    signature = dataset.infer_signature(splits, MLP())
    for split, train in ((splits.train, True), (splits.val, False)):
        weight_N = weights_of(split)
        for index, weight in enumerate(weight_N.tolist()):
            location = split.checks().location(index)
            number = location.line - 2 if location.line else int(Path(location.file).stem)
            assert weight == WEIGHTS[number]
        options = LoaderOptions(batch_size=8, train=train, seed=1, prefetch=0)
        for batch in dataset.build_loader(split, signature, options).epoch(0):
            assert len(batch.targets) == 2
            np.testing.assert_array_equal(batch.targets[1].asnumpy(), weight_N[batch.index_B])
    weights = weights_of(splits.train)
    said = f"'w' weights loss and metrics: 0 to 3.5, mean {weights.mean():.6g}"
    assert weights.min() == 0 and weights.max() == 3.5 and said in dataset.remark(signature, splits)


@pytest.mark.parametrize("name", [name for name in KINDS if name.startswith("texts")])
def test_weights_follow_their_texts(folder, name):
    train = KINDS[name](folder).open().train
    assert train.take([3, 1]).read_weights().tolist() == train.read_weights()[[3, 1]].tolist()


def test_wrong_weights_that_are_collected_count_nothing(folder):
    path = folder / "train.csv"
    path.write_text("\n".join(line.rpartition(",")[0] + ",x" for line in path.read_text().splitlines()))
    path.write_text(path.read_text().replace("tags,x", "tags,w", 1))
    findings = CollectedFindings()
    splits = KINDS["images, number"](folder).examine(findings)
    assert sum(findings.counts.values()) == COUNT and not weights_of(splits.train).any()


@pytest.mark.parametrize("name", KINDS)
def test_samples_without_a_column_of_weights_have_none(folder, name):
    splits = KINDS[name](folder, weight=None).open()
    assert weights_of(splits.train) is None and weights_of(splits.val) is None


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "cell, said",
    [
        ("-1", "line 4: 'w' is '-1'; a weight is a finite number of at least 0"),
        ("much", "line 4: 'w' is 'much'; a weight"),
        ("", "line 4: 'w' is ''; a weight"),
        ("inf", "line 4: 'w' is 'inf'; a weight"),
        ("1e39", "line 4: 'w' is '1e39'; a weight"),
    ],
)
def test_wrong_weights_are_named(folder, name, cell, said):
    path = folder / "train.csv"
    lines = path.read_text().splitlines()
    lines[3] = lines[3].rpartition(",")[0] + f",{cell}"
    path.write_text("\n".join(lines))
    own_val = {"val": str(path)} if name == "texts, class" else {}  # rows of all splits are read
    if own_val:
        (folder / "val.csv").write_text("\n".join(lines[:1] + lines[3:6]))
        own_val, said = {"val": str(folder / "val.csv")}, said.replace("line 4", "line (4|2)")
    with pytest.raises(DataError, match=f"csv, {said}"):
        KINDS[name](folder, **own_val).open()


@pytest.mark.parametrize("name", KINDS)
def test_settings_of_weights_are_checked(folder, name):
    with pytest.raises(DataError, match="dataset.weight: .*train.csv has no column 'v'"):
        KINDS[name](folder, weight="v").open()
    first = "image" if name.startswith("images") else "sentence"
    with pytest.raises(ConfigError, match=f"dataset.weight={first} is also named in dataset.{first}"):
        KINDS[name](folder, weight=first)
    lines = (folder / "train.csv").read_text().splitlines()
    zeros = [lines[0], *(line.rpartition(",")[0] + ",0" for line in lines[1:])]
    (folder / "train.csv").write_text("\n".join(zeros))
    with pytest.raises(DataError, match="all weights of the [0-9]+ training samples are 0"):
        KINDS[name](folder).open()


def test_weights_need_a_table_with_names_and_images_that_are_not_mixed(folder):
    with pytest.raises(ConfigError, match="dataset.augment mixes images, whose weights differ"):
        images(folder, label="tags", augment={"mixup": 0.2}).for_run(ClassSet)
    with pytest.raises(pydantic.ValidationError, match="header=false says that there are none"):
        texts(folder, header=False)
    for kind in (ClassIndex, Number):
        with pytest.raises(ConfigError, match="the default data have no such column"):
            Text(weight="w").for_run(kind).open()
    (folder / "comma.csv").write_text("sentence;label;w\n" + "".join(f"t{n};{n};1,{n % 10}\n" for n in range(20)))
    comma = Text(train=str(folder / "comma.csv"), weight="w", decimal=",").for_run(Number).open()
    assert sorted(weights_of(comma.val).tolist())[0] >= 1 and weights_of(comma.train).max() < 2
    (folder / "ones.csv").write_text("image,p,q,w\n" + "".join(f"{n}.png,{n % 2},1,2\n" for n in range(20)))
    ones = images(folder, train=str(folder / "ones.csv")).for_run(ClassSet).open()
    assert list(ones.class_names) == ["p", "q"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [IMAGES, TEXTS], ids=["images", "texts"])
def test_eval_of_numbers_equals_scikit_learn(folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    data = ("dataset.train=train.csv", "dataset.weight=w", "dataset.val_fraction=0.4")
    assert main(["task=regression", *words, *data, *SHORT]) == 0
    assert main(["eval", "run", "split=val"]) == 0
    values = json.loads(Path("run/eval/val/metrics.json").read_text())
    rows = list(csv.DictReader(Path("run/eval/val/predictions.csv").read_text().splitlines()))
    weight, true, predicted = ([float(row[key]) for row in rows] for key in ("weight", "true", "predicted"))
    assert len(set(weight)) > 2
    error = reference.mean_squared_error(true, predicted, sample_weight=weight) ** 0.5
    assert values["root_mean_squared_error"] == pytest.approx(error, rel=1e-5)
    assert error != pytest.approx(reference.mean_squared_error(true, predicted) ** 0.5, rel=1e-5)
    assert main(["predict", "run", "0.png" if words is IMAGES else "train.csv", "output=rows.jsonl"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [IMAGES, TEXTS], ids=["images", "texts"])
def test_verify_with_weights(folder, capsys, words):
    data = (f"dataset.train={folder}/train.csv", "dataset.weight=w")
    assert main(["verify", "task=regression", *words, *data, "parallel=data", "logger=[]"]) == 0
    assert "the same as on one device" in capsys.readouterr().out
