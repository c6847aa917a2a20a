"""Identity of data: contents count, not paths and times; resumed runs refuse other data."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from running import status, train_here

import mxtrain
from mxtrain.data.identity import differences, identify
from mxtrain.data.spec import Splits
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
        identity.hash_files(found, [str(tmp_path)])
        return found.hexdigest()

    for number in range(300):
        (tmp_path / f"{number}.xml").write_text("<name>cat</name>")
    before = digest()
    (tmp_path / "7.xml").write_text("<name>dog</name>")
    assert digest() != before
    before = digest()
    for name in ("a.JPG", "b.dcm", "c.rec", "d.wav", "e.flac", "f.avi"):
        (tmp_path / name).write_bytes(b"image")  # its name and size count elsewhere
    assert digest() == before
    monkeypatch.setattr(identity, "BUDGET_BYTES", 10)
    assert digest() == hashlib.sha256().hexdigest()


def held(*arrays):
    """A source with these arrays."""
    source = Source(np.zeros(3), "array")
    source._held = list(arrays)
    return source


def hash_of(*arrays):
    splits = Splits(train=held(*arrays), val=None, test=None, class_names=())
    known = {"files": {}, "splits": {"train": {"samples": 5, "sha256": "a"}}}
    return identify(FeatureTable(train="nowhere.csv", target="x"), splits, known)["splits"]["train"]["sha256"]


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float32"])
def test_numbers_of_all_types_count(dtype) -> None:
    array = np.zeros((4, 3), dtype)
    other = array.copy()
    other[2, 1] = 1
    assert hash_of(array) != hash_of(other)
    assert hash_of(other.T) == hash_of(np.ascontiguousarray(other.T)) != hash_of(other)  # its shape differs
    assert hash_of(array) != hash_of(array.reshape(3, 4))
    assert hash_of(array[:0]) != hash_of(array[:0].astype("float64"))


def test_texts_and_mapped_files_in_memory_do_not_count(tmp_path) -> None:
    mapped = np.memmap(tmp_path / "x", "float32", "w+", shape=(3,))
    before = hash_of(mapped, np.array(["a"]))
    mapped[0] = 1
    assert hash_of(mapped, np.array(["b"])) == before == hash_of()


def test_arrays_beyond_the_limit_count_by_their_shapes(monkeypatch) -> None:
    from mxtrain.data import identity

    zeros, ones = np.zeros(10, np.float32), np.ones(10, np.float32)
    monkeypatch.setattr(identity, "BUDGET_BYTES", 40)
    assert hash_of(zeros) != hash_of(ones)
    assert hash_of(zeros, zeros) == hash_of(zeros, ones) != hash_of(zeros)
    monkeypatch.setattr(identity, "BUDGET_BYTES", 39)
    assert hash_of(zeros) == hash_of(ones) != hash_of(zeros[1:])


def test_sources_within_sources(monkeypatch) -> None:
    from mxtrain.data import identity

    def nested(depth, array):
        source = held(array)
        for _ in range(depth):
            source = held(source)
        return source

    for depth in (0, identity.MAX_DEPTH, identity.MAX_DEPTH + 1):
        arrays = list(identity._arrays(nested(depth, np.arange(3)), set()))
        assert len(arrays) == (depth <= identity.MAX_DEPTH)
    loop = held(np.arange(3))
    loop.again = [loop, held(loop)]
    assert len(list(identity._arrays(loop, set()))) == 1
    assert identity.MAX_DEPTH == 4


def test_a_known_fingerprint_is_extended(tmp_path) -> None:
    write_table(tmp_path / "mine.csv")
    dataset = FeatureTable(train=str(tmp_path / "mine.csv"), target="bought")
    found = [
        identify(
            dataset,
            dataset.open(),
            {
                "files": {"train": {"sha256": files}},
                "splits": {"train": {"samples": 5, "sha256": split}},
            },
        )
        for files, split in (("a", "a"), ("b", "a"), ("a", "b"))
    ]
    assert found[0]["splits"]["train"]["samples"] == 5 and list(found[0]["splits"]) == ["train"]
    assert differences(found[0], found[1]) == ["  data: the files of dataset.train have other names or contents"]
    assert differences(found[0], found[2]) == ["  data: the 5 samples or labels of train differ"]


def test_added_and_removed_splits_are_reported() -> None:
    with_split = {"files": {"val": "a"}, "splits": {"val": {"samples": 5, "sha256": "a"}}}
    without = {"files": {}, "splits": {}}
    assert differences(with_split, without) == ["  data: val had 5 samples, now 0"]
    assert differences(without, with_split) == ["  data: val had 0 samples, now 5"]


def test_order_and_total_size_of_small_files(tmp_path, monkeypatch) -> None:
    import hashlib

    from mxtrain.data import identity

    def digest():
        found = hashlib.sha256()
        identity.hash_files(found, [str(tmp_path)])
        return found.hexdigest()

    (tmp_path / "a.txt").write_text("123456")
    (tmp_path / "b.txt").write_text("abcdef")
    before, walk = digest(), identity.walk_files
    monkeypatch.setattr(identity, "walk_files", lambda *given, **more: reversed(list(walk(*given, **more))))
    assert digest() == before
    monkeypatch.setattr(identity, "BUDGET_BYTES", 11)  # for one of them
    one = digest()
    (tmp_path / "b.txt").write_text("654321")
    assert digest() == one != before
    monkeypatch.setattr(identity, "BUDGET_BYTES", 12)
    assert digest() not in (one, before)

    def fail(*given, **more):
        raise OSError

    monkeypatch.setattr(identity, "open_regular", fail)
    assert digest() not in (one, before, hashlib.sha256().hexdigest())


FILES, SPLITS = {"files": {"train": "b"}, "splits": {}}, {"files": {}, "splits": {"train": {"samples": 4}}}


@pytest.mark.parametrize(
    "changes, now, is_refused",
    [
        ([], FILES, True),
        ([], SPLITS, True),
        (["data"], FILES, False),
        (["data"], SPLITS, False),
        (["dataset.image_size"], SPLITS, False),
        (["dataset.image_size"], FILES, True),
        (["dataset.batch_size"], SPLITS, True),
        (["optimizer.lr"], SPLITS, True),
    ],
)
def test_changes_that_allow_other_data(changes, now, is_refused) -> None:
    from types import SimpleNamespace

    from mxtrain.errors import CheckpointError
    from mxtrain.training.resume import require_finished_on_same_data, require_same_data

    data = {"files": {"train": "a"}, "splits": {"train": {"samples": 5}}}
    now = {**data, **{key: value for key, value in now.items() if value}}
    checkpoint = SimpleNamespace(path="step-1", step=1, state={"run": {"data": data}})
    config = {"checkpoint": {"changes": changes}}
    if is_refused:
        with pytest.raises(CheckpointError, match="step-1 was trained on other data"):
            require_same_data(checkpoint, config, now)
    else:
        require_same_data(checkpoint, config, now)
    require_same_data(checkpoint, config, data)
    older = SimpleNamespace(path="step-1", state={"run": {}})
    require_same_data(older, config, now)
    for none in (older, None):
        require_finished_on_same_data(none, None)  # does not open the dataset


@pytest.mark.slow
def test_resume_refuses_corrected_labels(tmp_path) -> None:
    data = tmp_path / "mine.csv"
    common = (
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={data}",
        "dataset.target=bought",
        "early_stopping=off",
        "model.hidden=[4]",
        "dataset.batch_size=16",
    )
    run, one, two = tmp_path / "run", "trainer.max_epochs=1", "trainer.max_epochs=2"
    write_table(data)
    train_here(run, *common, one)
    moved = tmp_path / "moved.csv"
    data.rename(moved)
    shutil.copy(moved, data)
    assert "nothing is left to do" in train_here(run, *common, one)
    write_table(data, flipped=[5, 6])
    for epochs in (one, two):
        said = train_here(run, *common, epochs, exit_code=2)
        assert "was trained on other data" in said and "the files of dataset.train" in said
        assert "checkpoint.resume=never" in said and "checkpoint.changes=[data]" in said
    train_here(run, *common, two, "checkpoint.changes=[data]")
    # Other statistics of columns follow from other data, which are reported first.
    write_table(data, rows=90)
    three = "trainer.max_epochs=3"
    assert "was trained on other data" in train_here(run, *common, three, exit_code=2)
    said = train_here(run, *common, three, "checkpoint.changes=[data]", exit_code=2)
    assert "with other columns than there are now" in said
    train_here(run, *common, one, "checkpoint.resume=never")


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "val"])
def test_runs_without_a_trained_step_continue_without_a_broken_image(tmp_path, split) -> None:
    photos = tmp_path / "photos"
    for number in range(32):
        path = photos / ("train", "val")[number < 8] / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (7 * number, 200 * (number % 2), 0)).save(path)
    common = (
        "dataset=image_folder",
        f"dataset.root={photos}",
        "dataset.image_size=8",
        "model=mlp",
        "model.hidden=[4]",
        "dataset.batch_size=4",
        "early_stopping=off",
    )
    two, broken = "trainer.max_epochs=2", photos / split / "a" / "broken.png"
    train_here(tmp_path / "fresh", *common, two)
    broken.write_bytes(b"no image")
    assert "run the same command again" in train_here(tmp_path / "run", *common, two, exit_code=1)
    broken.unlink()
    train_here(tmp_path / "run", *common, two)
    fresh, resumed = (status(tmp_path / name) for name in ("fresh", "run"))
    assert resumed["weights_sha256"] == fresh["weights_sha256"] and resumed["step"] == fresh["step"] == 12
    assert "nothing is left to do" in train_here(tmp_path / "run", *common, two)
    broken.write_bytes((photos / split / "a" / f"{2 if split == 'val' else 10}.png").read_bytes())
    assert "was trained on other data" in train_here(tmp_path / "run", *common, "trainer.max_epochs=3", exit_code=2)


@pytest.mark.slow
def test_resume_refuses_other_classes(tmp_path) -> None:
    """Scores belong to the classes of the checkpoint, also if other data are allowed."""
    data, run = tmp_path / "mine.csv", tmp_path / "run"
    words = (
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={data}",
        "dataset.target=bought",
        "early_stopping=off",
        "model.hidden=[4]",
        "dataset.batch_size=16",
    )

    def write(*names: str) -> None:
        write_table(data)
        header, *lines = data.read_text().splitlines()
        data.write_text("\n".join([header, *(f"{line[:-1]}{names[int(line[-1])]}" for line in lines)]) + "\n")

    write("ape", "bee")
    train_here(run, *words, "trainer.max_epochs=1")
    write("ape", "cat")
    said = train_here(run, *words, "trainer.max_epochs=2", "checkpoint.changes=[data]", exit_code=2)
    assert "was trained with other classes: class 1 was 'bee', and now it is 'cat'" in said
    weights = re.search(r"model\.weights=(\S+model\.params)", said)
    assert weights is not None and Path(weights.group(1)).is_file()
    write("ape", "bee")
    train_here(run, *words, "trainer.max_epochs=2", "checkpoint.changes=[data]")


@pytest.mark.slow
def test_given_arrays(tmp_path) -> None:
    from mxtrain.engine.backend import gluon

    def train(y, *overrides):
        network = gluon.nn.Dense(2)
        return mxtrain.train(
            "trainer.max_epochs=1", "logger=[]", *overrides, model=network, dataset=(x, y), dir=tmp_path
        )

    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    train(y)
    train(y.copy())
    corrected = y.copy()
    corrected[[17, 20]] = corrected[[20, 17]]
    with pytest.raises(MxtrainError, match="trained on other data"):
        train(corrected)
    train(corrected, "checkpoint.changes=[data]")
