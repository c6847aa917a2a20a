"""Detection in pictures in files: each layout is trained on, measured and predicted for."""

from __future__ import annotations

import json

import numpy as np
import pytest
from boxed_files import PICTURES, write_coco, write_list, write_records, write_voc

from mxtrain.cli.dispatch import run
from mxtrain.dataset.voc import Voc

LAYOUTS = {
    "voc": (lambda root: write_voc(root / "VOC2007"), ["dataset.classes=[cat,Dog]"]),
    "coco": (write_coco, ["dataset.augment.mosaic=0.5", "dataset.fit=pad"]),
    "image_list": (lambda root: write_list(root, train="abc", val="de"), ["dataset.classes=[cat,Dog]"]),
    "records": (write_records, ["dataset.classes=[cat,Dog]", "dataset.val_fraction=0.4"]),
}  # fmt: skip


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
        "task=detection", f"dataset={option}", where, *settings, "dataset.image_size=32", "dataset.batch_size=2",
        "model.channels=[8,8,8]", "model.width=8", "metric=[voc_ap,coco_ap]", "trainer.max_steps=2",
    )  # fmt: skip
    assert result.step == 2 and np.isfinite(result.metrics["val/loss"]), result.cause
    assert run(["eval", "run"]) == 0
    rows = (tmp_path / "run/eval/val/classes.csv").read_text().splitlines()
    if name != "records":  # of which any may be held out
        assert [row.split(",")[4] for row in rows[1:]] == (["1", "2"] if name == "coco" else ["2", "1"])
    pictures = sorted(path for path in root.rglob("*.jpg"))[:5]
    assert run(["predict", "run", *map(str, pictures), "output=rows.jsonl", "task.score_threshold=0"]) == 0
    found = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["file"] for row in found] == list(map(str, pictures))
    for row in found:
        (name, *_) = row["file"].rpartition("/")[2]
        width, height = PICTURES[name][0]
        edges = np.array([one["box"] for one in row["found"]])
        assert len(edges) and (edges >= 0).all() and (edges <= [width, height, width, height]).all()
    assert run(["data", "check", f"dataset={option}", where, *settings]) == 0


def test_batches_do_not_depend_on_threads(tmp_path):
    """Order, cuts, colours and mosaics are functions of (seed, epoch, sample)."""
    from mxtrain.dataset.loading.loader import Loader

    root = write_voc(tmp_path / "VOC2007")
    dataset = Voc(
        root=str(root), classes=["cat", "Dog"], image_size=[32, 32], train_split="trainval", val_split=None,
        val_fraction=0.2, augment={"mosaic": 0.4},
    )  # fmt: skip
    splits = dataset.open()

    def batches(num_workers, start=0):
        loader = Loader(
            splits.train, batch_size=3, input_shape=(3, 32, 32), mean=splits.mean, std=splits.std, num_classes=2,
            num_workers=num_workers, train=True, seed=5, keeps_size=True,
        )  # fmt: skip
        return [
            [array.asnumpy().tolist() for array in (*batch.inputs, *batch.targets)]
            for epoch in (0, 1) for batch in loader.epoch(epoch, start)
        ]  # fmt: skip

    one = batches(1)
    assert one == batches(4) and len(one) == 4 and one[0] != one[2]
    assert batches(2, start=1) == [one[1], one[3]]
