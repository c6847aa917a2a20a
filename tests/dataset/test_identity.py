"""Identity of data: contents count, not paths and times; resumed runs refuse other data."""

import os
import shutil

import numpy as np
import pytest
from running import here

import mxtrain
from mxtrain.data.base import Splits
from mxtrain.data.identity import differences, identify
from mxtrain.errors import MxtrainError
from mxtrain.tables.feature_table import FeatureTable


def write_table(path, flipped=(), rows=60):
    lines = ["age,size,bought", *(f"{20 + i % 37},{i * 7 % 11},{(i % 2) ^ (i in flipped)}" for i in range(rows))]
    path.write_text("\n".join(lines) + "\n")


def identity_of(path):
    dataset = FeatureTable(train=str(path), target="bought")
    return identify(dataset, dataset.open(), {})


def test_moved_and_touched_tables_are_the_same(tmp_path) -> None:
    write_table(tmp_path / "mine.csv")
    before = identity_of(tmp_path / "mine.csv")
    shutil.copy(tmp_path / "mine.csv", tmp_path / "copy.csv")
    os.utime(tmp_path / "mine.csv", (1, 1))
    assert identity_of(tmp_path / "mine.csv") == identity_of(tmp_path / "copy.csv") == before
    assert differences(before, before) == []


def test_one_corrected_label_is_seen(tmp_path) -> None:
    write_table(tmp_path / "mine.csv", rows=5000)
    before = identity_of(tmp_path / "mine.csv")
    write_table(tmp_path / "mine.csv", rows=5000, flipped=[1234])
    lines = differences(before, identity_of(tmp_path / "mine.csv"))
    assert "  data: the files of dataset.train have other names or contents" in lines
    assert any("samples or labels of" in line for line in lines)
    assert len(differences(before, identity_of(tmp_path / "mine.csv"), files_only=True)) == 1


class Source:
    """Samples whose numbers are in a private array, in a list, or in a source that it is made from."""

    def __init__(self, array, kind):
        self._held = {"array": array, "list": [array], "pairs": [(array, "a")], "dict": {"a": array}}[kind]

    def __len__(self):
        return 5000


Source.__module__ = "mxtrain.test"


@pytest.mark.parametrize("kind", ["array", "list", "pairs", "dict"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_numbers_in_memory(kind, split) -> None:
    def identity(array, name):
        sources = {"train": Source(np.zeros(3), "array"), "val": None, "test": None}
        sources[name] = Source(array, kind)
        return identify(FeatureTable(train="nowhere.csv", target="x"), Splits(**sources, class_names=()), {})

    array = np.zeros((5000, 3), np.float32)
    other = array.copy()
    other[1234, 1] = 1
    before = identity(array, split)
    assert identity(array.copy(), split) == before
    assert differences(before, identity(other, split)) == [f"  data: the 5,000 samples or labels of {split} differ"]


def test_small_text_files_below_a_folder_are_read(tmp_path, monkeypatch) -> None:
    import hashlib

    from mxtrain.data import identity

    def digest():
        found = hashlib.sha256()
        identity._hash_files(found, [str(tmp_path)])
        return found.hexdigest()

    for number in range(300):
        (tmp_path / f"{number}.xml").write_text("<name>cat</name>")
    before = digest()
    (tmp_path / "7.xml").write_text("<name>dog</name>")
    assert digest() != before
    before = digest()
    (tmp_path / "a.JPG").write_bytes(b"image")  # its name and size count elsewhere
    assert digest() == before
    monkeypatch.setattr(identity, "BUDGET_BYTES", 10)
    assert digest() == hashlib.sha256().hexdigest()


@pytest.mark.slow
def test_resume_refuses_corrected_labels(tmp_path) -> None:
    data = tmp_path / "mine.csv"
    common = ("task=tabular", "dataset=feature_table", f"dataset.train={data}", "dataset.target=bought",
              "early_stopping=off", "model.hidden=[4]", "dataset.batch_size=16")  # fmt: skip
    run, one, two = tmp_path / "run", "trainer.max_epochs=1", "trainer.max_epochs=2"
    write_table(data)
    here(run, *common, one)
    moved = tmp_path / "moved.csv"
    data.rename(moved)
    shutil.copy(moved, data)
    assert "nothing is left to do" in here(run, *common, one)
    write_table(data, flipped=[5, 6])
    for epochs in (one, two):
        said = here(run, *common, epochs, exit_code=2)
        assert "was trained on other data" in said and "the files of dataset.train" in said
        assert "checkpoint.resume=never" in said and "checkpoint.changes=[data]" in said
    here(run, *common, two, "checkpoint.changes=[data]")
    here(run, *common, one, "checkpoint.resume=never")


def test_given_arrays(tmp_path) -> None:
    from mxtrain.engine.backend import gluon

    def train(y, *overrides):
        network = gluon.nn.Dense(2)
        return mxtrain.train("trainer.max_epochs=1", "logger=[]", *overrides, model=network, dataset=(x, y),
                             dir=tmp_path)  # fmt: skip

    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    train(y)
    train(y.copy())
    corrected = y.copy()
    corrected[[17, 20]] = corrected[[20, 17]]
    with pytest.raises(MxtrainError, match="trained on other data"):
        train(corrected)
    train(corrected, "checkpoint.changes=[data]")
