"""Detection in images in files: each layout is trained on, measured and predicted for."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
from boxed_files import IMAGES, write_coco, write_list, write_records, write_voc

from mxtrain.cli.dispatch import run
from mxtrain.training.verification import verify
from mxtrain.vision.detection.centernet_fpn import CenterNetFPN
from mxtrain.vision.detection.voc import Voc

LAYOUTS = {
    "voc": (lambda root: write_voc(root / "VOC2007"), ["dataset.classes=[cat,Dog]"]),
    "coco": (write_coco, ["dataset.augment.mosaic=0.5", "dataset.fit=pad"]),
    "image_list": (lambda root: write_list(root, train="abc", val="de"), ["dataset.classes=[cat,Dog]"]),
    "records": (write_records, ["dataset.classes=[cat,Dog]", "dataset.val_fraction=0.4"]),
}


@pytest.mark.zoo_except("coco")
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_trained_on_measured_and_predicted_for(tmp_path, train_run, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    write, settings = LAYOUTS[name]
    root = tmp_path / "data"
    root.mkdir()
    write(root) if name != "coco" else write(root / "coco")
    where = f"dataset.root={root / 'coco' if name == 'coco' else root}"
    option = "image_list" if name == "records" else name
    _, result = train_run(
        "task=detection",
        f"dataset={option}",
        where,
        *settings,
        "dataset.image_size=32",
        "dataset.batch_size=2",
        "model.channels=[8,8,8]",
        "model.width=8",
        "metric=[voc_ap,coco_ap]",
        "trainer.max_steps=2",
    )
    assert result.step == 2 and np.isfinite(result.metrics["val/loss"]), result.cause
    assert run(["eval", "run"]) == 0
    rows = (tmp_path / "run/eval/val/classes.csv").read_text().splitlines()
    if name != "records":  # of which any may be held out
        assert [row.split(",")[4] for row in rows[1:]] == (["1", "2"] if name == "coco" else ["2", "1"])
    images = sorted(path for path in root.rglob("*.jpg"))[:5]
    asked = ["predict", "run", *map(str, images), "task.score_threshold=0"]
    capsys.readouterr()
    assert run([*asked, "output=rows.jsonl"]) == 0
    said = capsys.readouterr().out
    assert run([*asked, "format=coco", "output=results.json"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert f"{len(images)} predictions written to rows.jsonl: {len(results)} boxes with a score of" in said
    names = [path.stem for path in images]
    wanted = [100 + 7 * ord(one) for one in names] if option == "coco" else names
    found = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    counts = {id: len(row["found"]) for id, row in zip(wanted, found) if row["found"]}
    assert Counter(one["image_id"] for one in results) == counts
    assert [row["file"] for row in found] == list(map(str, images))
    for row in found:
        (stem, *_) = row["file"].rpartition("/")[2]
        width, height = IMAGES[stem][0]
        edges = np.array([one["box"] for one in row["found"]]).reshape(-1, 4)
        assert (edges >= 0).all() and (edges <= [width, height, width, height]).all()
    # In COCO's validation split all cats are crowd regions: nothing of them is measured, and training only warns.
    assert run(["data", "check", f"dataset={option}", where, *settings]) == (2 if name == "coco" else 0)


def test_batches_do_not_depend_on_threads(tmp_path):
    """Order, cuts, colours and mosaics are functions of (seed, epoch, sample)."""
    from image_loader import image_loader

    root = write_voc(tmp_path / "VOC2007")
    dataset = Voc(
        root=str(root),
        classes=["cat", "Dog"],
        image_size=[32, 32],
        train_split="trainval",
        val_split=None,
        val_fraction=0.2,
        augment={"mosaic": 0.4},
    )
    splits = dataset.open()

    def batches(num_workers, start=0):
        loader = image_loader(
            splits.train,
            batch_size=3,
            input_shape=(3, 32, 32),
            mean=splits.mean,
            std=splits.std,
            num_classes=2,
            num_workers=num_workers,
            train=True,
            seed=5,
            keeps_size=True,
        )
        return [
            [array.asnumpy().tolist() for array in (*batch.inputs, *batch.targets)]
            for epoch in (0, 1)
            for batch in loader.epoch(epoch, start)
        ]

    one = batches(1)
    assert one == batches(4) and len(one) == 4 and one[0] != one[2]
    assert batches(2, start=1) == [one[1], one[3]]


SIZES = ("dataset.image_size=32", "dataset.image_sizes=[32,64,[32,48]]", "dataset.image_sizes_interval=1")
MIXED = ("dataset.augment.mixup=1.5", "dataset.augment.mosaic=0.3", "dataset.augment.mix_epochs=3")
TINY = (
    "task=detection",
    "dataset=voc",
    "dataset.classes=[cat,Dog]",
    "dataset.batch_size=2",
    "model.channels=[8,8,8]",
    "model.width=8",
)


@pytest.mark.slow
def test_a_run_on_several_sizes_and_mixed_images_resumes_to_the_same_bits(tmp_path, train_run):
    root = f"dataset.root={write_voc(tmp_path / 'VOC2007', train='abcd', val='e')}"
    words = [*TINY, *SIZES, *MIXED, root, "trainer.max_epochs=5"]
    _, whole = train_run(*words, run_dir=tmp_path / "whole")
    assert whole.step == 10 and np.isfinite(whole.metrics["val/loss"])
    train_run(*words, "trainer.max_steps=5", run_dir=tmp_path / "parts")
    _, parts = train_run(*words, run_dir=tmp_path / "parts")
    assert parts.weights_sha256 == whole.weights_sha256
    _, other = train_run(*words, "dataset.augment.mixup=0", run_dir=tmp_path / "other")
    assert other.weights_sha256 != whole.weights_sha256


YOLO3 = pytest.param(("model.name=yolo3_mobilenet0.25",), marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [("model.channels=[8,8]", "model.width=8"), pytest.param(YOLO3, marks=pytest.mark.zoo)]
)
def test_placements_compute_batches_of_several_sizes_and_mixed_images(tmp_path, describe_run, model):
    """Each is another size; the loss of mixed images is divided by what objects count in the global batch."""
    root = f"dataset.root={write_voc(tmp_path / 'VOC2007')}"
    sizes = [word.replace("[32,48]", "96") for word in SIZES]
    description = describe_run(
        "task=detection",
        "dataset=voc",
        root,
        "dataset.classes=[cat,Dog]",
        "dataset.batch_size=3",
        *sizes,
        *MIXED,
        *model,
        "parallel=data",
    )
    assert verify(description, 3, 1e-5).passed


@pytest.mark.slow
def test_only_training_draws_from_several_sizes(tmp_path, describe_run):
    from mxtrain.data.spec import open_splits
    from mxtrain.engine.backend import mx
    from mxtrain.training.loaders import build_loader

    root = f"dataset.root={write_voc(tmp_path / 'VOC2007', train='abcd', val='e')}"
    description = describe_run(*TINY, *SIZES, root)
    splits = open_splits(description.dataset)
    signature = description.dataset.infer_signature(splits, description.model)
    for train, found in ((True, {(32, 32), (64, 64), (32, 48)}), (False, {(32, 32)})):
        options = {"batch_size": 1, "train": True} if train else {"batch_size": 1}
        loader = build_loader(description, splits.train, signature, mx.cpu(), **options)
        shapes = {batch.inputs[0].shape[2:] for epoch in range(5) for batch in loader.epoch(epoch)}
        assert shapes == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        ("model=ssd dataset.image_sizes=[300,320]", "dataset.image_sizes: the anchors of model.name=ssd_512_mobilenet"),
        ("model=faster_rcnn dataset.image_sizes=[320]", "dataset.image_sizes: what model.name=faster_rcnn"),
        (
            "task=instance_segmentation model=mask_rcnn dataset.image_sizes=[320]",
            "dataset.image_sizes: what model.name=mask_rcnn",
        ),
        ("model=faster_rcnn dataset.augment.mixup=1", "which FasterRCNN does not support"),
        ("model=yolo3 dataset.image_sizes=[320,330]", "multiples of 32, but they are 330x330. Type dataset.image"),
        ("model=gluoncv_centernet dataset.image_sizes=[[64,100]]", "dataset.image_sizes=[64,128] in its place."),
        ("model=yolo3 dataset.image_sizes=[1056]", "up to 1024 pixels, and 1056 is more"),
        ("task=detection dataset.image_sizes=[x]", "image_sizes"),
        (f"task=detection model._target_={__name__}.Unweighing dataset.augment.mixup=1", "dataset.augment.mixup=0."),
    ],
)
def test_unsupported_settings_of_a_network_are_refused_before_data_are_read(capsys, words, said):
    assert run(["dataset=voc", "dataset.root=nowhere", *words.split(), "logger=[]"]) == 2
    assert said in capsys.readouterr().err


class Unweighing(CenterNetFPN):
    """A loss of a user that ignores weights."""

    weighs_boxes: ClassVar[bool] = False


@pytest.mark.slow
def test_wrong_data_names_the_command_that_lists_all_of_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = write_voc(tmp_path / "VOC 2007")
    words = ["task=detection", "dataset=voc", f"dataset.root='{root}'", "dataset.classes=[cat]"]
    assert run([*words, "trainer.max_epochs=1", "logger=[]"]) == 2
    said = capsys.readouterr().err
    assert said.count("data check") == 1 and "trainer" not in said
    command = said.partition(" data check ")[2].partition("`")[0]
    assert run(["data", "check", *shlex.split(command)]) == 2
    assert "unknown_class" in capsys.readouterr().out
    assert run(["dataset=voc", "dataset.root=nowhere", "logger=[]"]) == 2  # which no check would find more of
    assert "data check" not in capsys.readouterr().err
