"""Segmentation of images in files: what `predict` writes is a mask like those of the dataset, and `eval` says of it
what NumPy does."""

import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from PIL import Image

from mxtrain.cli.dispatch import run
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

SIZES = [(40, 52), (64, 64), (33, 70), (90, 120), (100, 64), (75, 131), (64, 48), (57, 57)]
VALUES = np.array([10, 20, 200], np.uint8)
NAMES = ["sky", "tree", "road"]


def write(root):
    rng = np.random.RandomState(0)
    for number, (height, width) in enumerate(SIZES):
        split = ("train", "val")[number % 2]
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        small = rng.randint(0, 3, (height // 20 + 1, width // 20 + 1)).astype(np.uint8)
        mask = np.kron(small, np.ones((20, 20), np.uint8))[:height, :width]
        noise = rng.randint(-20, 20, (height, width, 3))
        value = VALUES[mask]
        value[:3] = 255
        Image.fromarray((mask[..., None] * 80 + 40 + noise).astype(np.uint8)).save(
            root / f"images/{split}/{number}.jpg"
        )
        Image.fromarray(value).save(root / f"masks/{split}/{number}.png")
    (root / "classes.txt").write_text("\n".join(NAMES))
    return root


@pytest.mark.slow
def test_predicted_masks_are_readable_and_score_as_measured(tmp_path, train_run, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = write(tmp_path / "data")
    settings = [
        f"dataset.root={root}",
        "dataset.mask_values=[10,20,200]",
        "dataset.image_size=32",
        "dataset.eval_size=[80,96]",
        "dataset.batch_size=2",
        "trainer.max_epochs=1",
    ]
    train_run("task=segmentation", "dataset=segmentation_folder", *settings)
    # The frame of the run, in which all but one image fit; and a smaller one, in which most do not.
    for frame in ([], ["dataset.eval_size=[40,50]"]):
        assert run(["predict", "run", str(root / "images/val"), "folder=masks", "output=rows.jsonl", *frame]) == 0
        assert run(["eval", "run", *frame]) == 0
        same = counted = 0
        for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines()):
            number = os.path.basename(row["file"]).partition(".")[0]
            true = np.asarray(Image.open(root / f"masks/val/{number}.png"))
            image = Image.open(row["mask"])
            found = np.asarray(image)
            assert image.mode == "P" and found.shape == true.shape == SIZES[int(number)]
            assert set(np.unique(found)) <= set(VALUES.tolist())
            same += (found == true)[true != 255].sum()
            counted += (true != 255).sum()
        measured = json.loads((tmp_path / "run/eval/val/metrics.json").read_text())
        assert measured["pixel_accuracy"] == pytest.approx(same / counted, abs=1e-6) and counted > 20_000
    # The masks that were written are the truth of a dataset now.
    (tmp_path / "own/images").mkdir(parents=True)
    (tmp_path / "masks").rename(tmp_path / "own/masks")
    for path in (root / "images/val").iterdir():
        path.rename(tmp_path / "own/images" / path.name)
    splits = SegmentationFolder(
        root=str(tmp_path / "own"), classes=NAMES, mask_values=VALUES.tolist(), val_fraction=0.25
    ).open()
    source = splits.train.source
    for index, path in enumerate(source.masks):
        value = np.asarray(Image.open(path))
        assert np.array_equal(VALUES[source.mask(index, value.shape[::-1])], value)
    # The size of the input is that of the training.
    capsys.readouterr()
    assert run(["eval", "run", "dataset.image_size=[16,16]"]) == 2
    assert "dataset.image_size=[16, 16]: the network was trained with dataset.image_size=" in capsys.readouterr().err
