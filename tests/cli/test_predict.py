"""`predict` computes for files the same as `eval` for the dataset, sample by sample."""

import gzip
import json
import os
import shutil
import struct

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from image_files import open_files
from PIL import Image

from mxtrain.checkpoint import open_checkpoint
from mxtrain.cli.dispatch import run
from mxtrain.data.loading.sources import Subset
from mxtrain.data.signature import signature_of
from mxtrain.data.spec import open_splits
from mxtrain.errors import ConfigError
from mxtrain.text.classification.glue import LAYOUTS
from mxtrain.training.loaders import build_loader
from mxtrain.training.trained import load_trained
from mxtrain.vision.images.make_record import make_record
from mxtrain.workflows.predict import refuse_streams

RNG = np.random.RandomState(5)


def write_mnist(folder):
    for part, count in (("train", 40), ("t10k", 20)):
        images = RNG.randint(0, 256, (count, 28, 28), dtype=np.uint8).tobytes()
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        for name, content in (
            (f"{part}-images-idx3-ubyte", struct.pack(">4I", 0x803, count, 28, 28) + images),
            (f"{part}-labels-idx1-ubyte", struct.pack(">2I", 0x801, count) + labels),
        ):
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))


def write_cifar(names, num_labels, folder):
    for name in names:
        rows = RNG.randint(0, 256, (12, num_labels + 3072), dtype=np.uint8)
        rows[:, :num_labels] = np.arange(12)[:, None] % 10
        (folder / name).write_bytes(rows.tobytes())


def write_images(folder):
    """Photographs of several sizes, sides and depths."""
    for name in ("blue", "red"):
        (folder / name).mkdir()
        for number in range(10):
            size = (30 + 3 * number, 60 - 4 * number, 3)
            exif = Image.Exif()
            exif[0x0112] = 1 + number % 8
            pixels = RNG.randint(0, 256, size, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg", exif=exif)
        Image.fromarray(RNG.randint(0, 65536, (30, 40)).astype(np.uint16)).save(folder / name / "deep.png")


def write_records(folder):
    (folder / "images").mkdir()
    write_images(folder / "images")
    make_record(str(folder / "images"), str(folder / "images"), test_fraction=0.3)


CIFAR10 = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
WRITERS = {
    "digits": lambda folder: None,
    "synthetic": lambda folder: None,
    "mnist": write_mnist,
    "fashion_mnist": write_mnist,
    "cifar10": lambda folder: write_cifar(CIFAR10, 1, folder),
    "cifar100": lambda folder: write_cifar(["train.bin", "test.bin"], 2, folder),
    "image_folder": write_images,
    "image_record": write_records,
}
OWN_FILES = ("mnist", "fashion_mnist", "cifar10", "cifar100")
DECODED = ("image_folder", "image_record")


def save_files(source, folder):
    """The samples of a split as image files, in order."""
    folder.mkdir()
    names = [folder / f"{number:04d}.png" for number in range(len(source))]
    if not hasattr(source, "image_NCHW"):
        for number, name in enumerate(names):
            inner, place = (source.source, source.index_N[number]) if isinstance(source, Subset) else (source, number)
            name.write_bytes(inner.encoded.read(int(place))[0])
        return names
    for name, image_CHW in zip(names, source.image_NCHW):
        Image.fromarray(image_CHW[0] if len(image_CHW) == 1 else image_CHW.transpose(1, 2, 0)).save(name)
    return names


def batches(loader):
    return np.concatenate([batch.inputs[0].asnumpy() for batch in loader.epoch()])


@pytest.mark.zoo_except(
    "digits-()",
    "synthetic-('dataset.image_size=[20,24]',)",
    "mnist-('dataset.channels=1',)",
    "fashion_mnist-()",
    "cifar10-('dataset.image_size=[20,24]',)",
)
@pytest.mark.slow
@pytest.mark.parametrize("network", [(), ("dataset.image_size=[20,24]",), ("dataset.channels=1",)], ids=str)
@pytest.mark.parametrize("name", WRITERS)
def test_files_enter_the_network_as_the_dataset_does(describe_run, tmp_path, name, network):
    (tmp_path / "data").mkdir()
    WRITERS[name](tmp_path / "data")
    options = [] if name in ("digits", "synthetic") else [f"dataset.root={tmp_path / 'data'}"]
    options += ["dataset.verify_checksum=false"] if name in OWN_FILES else []
    options += ["dataset.central_crop=0.9", "dataset.test_fraction=0.3"] if name in DECODED else []
    options += ["dataset.image_size=[24,16]"] if name in DECODED and not network else []
    description = describe_run(f"dataset={name}", "model=lenet", *options, *network)
    splits = open_splits(description.dataset)
    signed = description.dataset.infer_signature(splits, description.model)
    given = type(signed).from_json(json.loads(json.dumps(signed.to_json())))
    evaluated = batches(build_loader(description, splits.test, given, "cpu:0"))
    files = save_files(splits.test, tmp_path / "files")
    predicted = batches(build_loader(description, open_files(files, given.decoding), given, "cpu:0"))
    assert len(files) == len(splits.test) > 2
    np.testing.assert_array_equal(predicted, evaluated)


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", ["text", *(f"glue_{task}" for task in ("cola", "mrpc"))])
def test_texts_enter_the_network_as_the_dataset_does(describe_run, tmp_path, name):
    pytest.importorskip("tokenizers")
    dataset, _, task = name.partition("_")
    columns, header = (["sentence", "label"], True)
    options, train = [f"dataset.train={tmp_path / 'train.tsv'}", f"dataset.test={tmp_path / 'test.tsv'}"], "train.tsv"
    test = "test.tsv"
    if task:
        layout = LAYOUTS[task]
        columns, header, test = list(layout.columns), task != "cola", "dev.tsv"
        options = [f"dataset.root={tmp_path}", f"dataset.task={task}"]
        (tmp_path / layout.folder).mkdir()
        train, test = f"{layout.folder}/train.tsv", f"{layout.folder}/dev.tsv"
    for file, count in ((train, 40), (test, 12)):
        rows = [columns] if header else []
        for number in range(count):
            texts = [" ".join(RNG.choice("one two three four five".split(), 4)) for _ in columns[:-1]]
            row = [*texts, str(number % 2)]
            rows.append(row if header else ["x", row[1], "x", row[0]])
        (tmp_path / file).write_text("".join("\t".join(row) + "\n" for row in rows))
    description = describe_run(f"dataset={dataset}", "model=bert", *options)
    splits = open_splits(description.dataset)
    given = description.dataset.infer_signature(splits, description.model)
    source, places = description.dataset.open_inputs([str(tmp_path / test)], given, False, {})
    expected, found = (
        (splits.val if task else splits.test).encode(given.tokenizer_config),
        source.encode(given.tokenizer_config),
    )
    every = np.arange(12)
    for one, other in zip(found.padded(every, 32), expected.padded(every, 32)):
        np.testing.assert_array_equal(one, other)
    assert places[0].endswith(f":{1 + header}") and len(places) == 12


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    write_images(folder)
    return folder


def accuracy_and_rows(run_dir, files, folder, *overrides):
    """`eval`'s accuracy, and `predict`'s rows by the name of the file."""
    assert run(["eval", str(run_dir), "split=test", f"output={folder}", *overrides]) == 0
    assert run(["predict", str(run_dir), f"output={folder}/p.jsonl", "top_k=99", *overrides, *map(str, files)]) == 0
    rows = [json.loads(line) for line in (folder / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    return json.loads((folder / "metrics.json").read_text())["accuracy"], rows


def predictions_and_labels(trained, loader):
    """Returns the prediction and the true class of each sample of a loader."""
    found = [
        (trained.description.task.decode(outputs, batch).asnumpy(), batch.targets[0].asnumpy().astype(int))
        for batch, outputs in trained.evaluator.predict(loader)
    ]
    return tuple(map(np.concatenate, zip(*found)))


@pytest.mark.zoo_cases("digits-()", "image_folder-()", "image_folder-('dataset.central_crop=0.5',)")
@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("dataset.central_crop=0.5",)], ids=str)
@pytest.mark.parametrize("name", ["digits", "image_folder"])
def test_predict_agrees_with_eval(train_run, describe_run, photos, tmp_path, name, overrides, capsys):
    options = ["model=mlp", "trainer.max_epochs=1", f"dataset={name}"]
    if name == "image_folder":
        options += [
            f"dataset.root={photos}",
            "dataset.image_size=[16,16]",
            "dataset.central_crop=1.0",
            "dataset.test_fraction=0.4",
            "dataset.batch_size=4",
        ]
    train_run(*options)
    run_dir = tmp_path / "run"
    checkpoint = open_checkpoint(str(run_dir))
    if name == "digits" and overrides:
        assert run(["predict", str(run_dir), *overrides, str(photos)]) == 2
        assert "there is no 'dataset.central_crop'" in capsys.readouterr().err
        return
    description = describe_run(*options, *overrides)
    test = open_splits(description.dataset).test
    files = save_files(test, tmp_path / "files")
    accuracy, rows = accuracy_and_rows(run_dir, files, tmp_path / "out", *overrides)
    signature = signature_of(checkpoint, description.dataset.signature_class)
    trained = load_trained(checkpoint, description, signature)
    probability_NK, label_N = predictions_and_labels(
        trained, build_loader(description, test, signature, trained.device)
    )
    names = signature.class_names
    found = np.array(
        [[{one["class"]: one["probability"] for one in row["top"]}[name] for name in names] for row in rows]
    )
    np.testing.assert_allclose(found, probability_NK, atol=1e-6)
    assert accuracy == pytest.approx(np.mean([row["class"] == names[label] for row, label in zip(rows, label_N)]))


@pytest.mark.slow
def test_settings_of_a_trained_run_are_fixed(train_run, photos, tmp_path, capsys):
    train_run(
        "model=mlp",
        "trainer.max_epochs=1",
        f"dataset.root={photos}",
        "dataset=image_folder",
        "dataset.image_size=[16,16]",
        "dataset.batch_size=4",
    )
    run_dir = str(tmp_path / "run")
    for command, override in (
        (["predict", run_dir, str(photos)], "dataset.image_size=[32,32]"),
        (["eval", run_dir], "dataset.mean=[0.1,0.2,0.3]"),
        (["predict", run_dir, str(photos)], "dataset.channels=1"),
    ):
        assert run([*command, override]) == 2
        assert f"error: {override.partition('=')[0]}=" in capsys.readouterr().err
    assert run(["predict", run_dir, str(photos), "dataset.image_size=[16,16]"]) == 0


@pytest.fixture
def damaged(train_run, photos, tmp_path):
    """A run, and a folder of two images and one that is none."""
    train_run("model=mlp", "trainer.max_epochs=1")
    folder = tmp_path / "new"
    folder.mkdir()
    for name in ("a.jpg", "c.jpg"):
        (folder / name).write_bytes((photos / "red" / "1.jpg").read_bytes())
    (folder / "b.jpg").write_bytes(b"no image")
    return tmp_path / "run", folder


@pytest.mark.slow
def test_predict_stops_at_an_unreadable_file_without_output(damaged, tmp_path, capsys):
    run_dir, folder = damaged
    assert run(["predict", str(run_dir), str(folder), f"output={tmp_path}/out/p.csv"]) == 2
    said = capsys.readouterr().err
    fact, _, remedy = said.strip().partition(" (cannot identify image file). ")
    assert fact.endswith("b.jpg' cannot be read as an image")
    assert remedy == "Replace or remove it, or type skip_unreadable=true to go on without such files."
    assert list((tmp_path / "out").iterdir()) == []


def test_streams_are_refused_with_an_alternative(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x.txt").write_text("a text")
    descriptor = os.open(tmp_path / "x.txt", os.O_RDONLY)
    refuse_streams([str(tmp_path), str(tmp_path / "x.txt"), str(tmp_path / "gone"), f"/dev/fd/{descriptor}"], False)
    os.close(descriptor)
    for name, why in (
        ("-", "not standard input"),
        (str(tmp_path / "pipe"), "is a named pipe, and only regular files"),
        ("/dev/zero", "is a device"),
    ):
        with pytest.raises(ConfigError, match=f"{why}.* Write it into a file whose name ends .* instead of {name}"):
            refuse_streams([name], False)
    refuse_streams([str(tmp_path / "pipe")], True)  # it is listed at the end


@pytest.mark.slow
def test_predict_skips_unreadable_files_on_request_and_lists_them(damaged, tmp_path, capsys):
    run_dir, folder = damaged
    os.mkfifo(folder / "pipe")
    words = ["predict", str(run_dir), "skip_unreadable=true"]
    assert run([*words, str(folder), str(folder / "pipe")]) == 0
    said = capsys.readouterr()
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert [os.path.basename(row["file"]) for row in rows] == ["a.jpg", "c.jpg"]
    assert "files without a prediction, for they cannot be read: 2" in said.err
    assert "b.jpg' cannot be read as an image" in said.err and "pipe' is a named pipe" in said.err
    assert "Replace or remove" not in said.err  # it went on: there is nothing to run again
    assert run([*words, str(folder / "b.jpg"), f"output={tmp_path}/out/p.jsonl"]) == 2
    assert "no file could be read" in capsys.readouterr().err and list((tmp_path / "out").iterdir()) == []
    assert run([*words, str(folder / "gone.jpg")]) == 2
    assert run(["eval", str(run_dir), "skip_unreadable=true"]) == 2


@pytest.mark.slow
def test_eval_of_an_unreadable_image_exits_with_2_without_output(train_run, photos, tmp_path, capsys):
    shutil.copytree(photos, tmp_path / "photos")
    train_run(
        "model=mlp",
        "trainer.max_epochs=1",
        f"dataset.root={tmp_path / 'photos'}",
        "dataset=image_folder",
        "dataset.image_size=[8,8]",
        "dataset.batch_size=4",
        "dataset.test_fraction=0.3",
    )
    for path in (tmp_path / "photos").rglob("*.jpg"):
        path.write_bytes(b"no image")
    assert run(["eval", str(tmp_path / "run")]) == 2
    assert "Replace or remove it, and run the same command again." in capsys.readouterr().err
    assert not (tmp_path / "run" / "eval").exists()


@pytest.mark.slow
def test_rows_are_utf8_for_any_terminal(damaged, capsys):
    run_dir, folder = damaged
    os.rename(folder / "b.jpg", os.path.join(os.fsencode(folder), b"\xff.txt"))
    os.rename(folder / "a.jpg", folder / "\u732b.jpg")
    os.rename(folder / "c.jpg", os.path.join(os.fsencode(folder), b"\xfe.jpg"))
    assert run(["predict", str(run_dir), str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("\u732b.jpg" in line for line in lines) and any("\\udcfe.jpg" in line for line in lines)
    assert {json.loads(line)["file"][-5:] for line in lines} >= {"\udcfe.jpg"}
