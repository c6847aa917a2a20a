"""Runs on images of medicine: trained, gone on with, evaluated and predicted, with the window that the run had."""

import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from PIL import Image
from running import assert_same, train_here

from mxtrain.checkpoint import open_checkpoint
from mxtrain.cli.dispatch import run

CLASSIFICATION = [
    "dataset=image_folder",
    "model=lenet",
    "dataset.channels=1",
    "dataset.image_size=[24,32]",
    "dataset.central_crop=1.0",
    "dataset.batch_size=5",
    "trainer.max_epochs=1",
]


@pytest.fixture
def ct(tmp_path):
    pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
    from dicom_files import write_folder

    return write_folder(tmp_path / "ct")


def predictions(folder, *arguments):
    """Class and probabilities of each file."""
    assert run(["predict", *arguments, f"output={folder / 'rows.jsonl'}"]) == 0
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_dicom_files_are_trained_on_and_predicted_without_the_training_data(ct, tmp_path, capfd):
    from pydicom import dcmread

    settings = [*CLASSIFICATION, f"dataset.root={ct}", "dataset.window=[40,400]"]
    train_here(tmp_path / "whole", *settings)
    train_here(tmp_path / "half", *settings, "trainer.max_steps=1", exit_code=75)
    train_here(tmp_path / "half", *settings)
    assert_same(tmp_path / "half", tmp_path / "whole")
    run_dir = tmp_path / "whole"
    kept = open_checkpoint(str(run_dir)).state["run"]["input"]
    assert kept["decoding"]["window"] == [40.0, 400.0] and kept["mean"] != [pytest.approx(0.449, abs=1e-2)]
    before = predictions(tmp_path, str(run_dir), str(ct / "ill"))
    (ct / "ill").rename(tmp_path / "new")
    (ct / "well").rename(tmp_path / "other")
    found = predictions(tmp_path, str(run_dir), str(tmp_path / "new"))
    assert [row["top"] for row in found] == [row["top"] for row in before] and len(found) == 6
    # As 8-bit images of what that window shows: the same network sees the same.
    for path in list((tmp_path / "new").iterdir()):
        units = dcmread(path).pixel_array.astype(float) - 1024
        shown = np.clip((units + 160) / 400, 0, 1) * 65535
        Image.fromarray(np.rint(shown).astype(np.uint16)).save(path.with_suffix(".png"))
        path.unlink()
    shown = predictions(tmp_path, str(run_dir), str(tmp_path / "new"), "dataset.window=full")
    for one, other in zip(found, shown):
        assert one["class"] == other["class"]
        for this, that in zip(one["top"], other["top"]):
            assert this["probability"] == pytest.approx(that["probability"], abs=1e-3)
    other = predictions(tmp_path, str(run_dir), str(tmp_path / "new"))  # in the window of the run: another image
    assert [row["top"] for row in other] != [row["top"] for row in shown]
    # No file that a run leaves behind names a person.
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".dcm")
    printed = capfd.readouterr()
    assert b"Jane" not in left and "Jane" not in printed.out + printed.err


@pytest.mark.slow
def test_masks_are_predicted_for_deep_images(tmp_path, train_run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.RandomState(0)
    for folder in ("images", "masks"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for number in range(6):
        mask = np.kron(rng.randint(0, 2, (3, 4)), np.ones((16, 16))).astype(np.uint8)
        deep = (mask * 300 + 1000 + rng.randint(0, 50, mask.shape)).astype(np.uint16)  # of 65,535: nearly black
        Image.fromarray(deep).save(tmp_path / f"data/images/{number}.png")
        Image.fromarray(mask).save(tmp_path / f"data/masks/{number}.png")
    train_run(
        "task=segmentation",
        "dataset=segmentation_folder",
        f"dataset.root={tmp_path / 'data'}",
        "dataset.classes=[no,yes]",
        "dataset.image_size=32",
        "dataset.eval_size=[48,64]",
        "dataset.channels=1",
        "dataset.window=[1175,400]",
        "dataset.batch_size=2",
        "dataset.val_fraction=0.34",
        "trainer.max_steps=2",
    )
    assert run(["eval", "run"]) == 0
    for window, name in ((), "own"), (("dataset.window=[10000,100]",), "dark"):
        assert run(["predict", "run", "data/images", f"folder={name}", "output=rows.jsonl", *window]) == 0
    own, dark = (
        np.stack([np.asarray(Image.open(path)) for path in sorted((tmp_path / name).iterdir())])
        for name in ("own", "dark")
    )
    assert own.shape == (6, 48, 64) and (own != dark).any()
