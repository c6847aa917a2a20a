"""Fingerprints of data: equal for equal data wherever they lie, others for others, with limited work."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
from PIL import Image

from mxtrain.data import fingerprint as module
from mxtrain.data.fingerprint import _update, fingerprint
from mxtrain.data.spec import open_splits


def images(root: Path, count: int = 12) -> Path:
    for number in range(count):
        folder = root / ("a" if number % 2 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.mark.slow
def test_only_the_content_counts(tmp_path: Path, describe_run: Callable[..., Any]) -> None:
    dataset = describe_run("dataset=image_folder", f"dataset.root={images(tmp_path / 'one')}").dataset
    images(tmp_path / "two")
    (tmp_path / "two/a/.hidden").write_text("x")
    (tmp_path / "two/outputs/.hydra").mkdir(parents=True)
    (tmp_path / "two/outputs/model.bin").write_text("x")

    def of(name: str) -> str:
        moved = dataset.model_copy(update={"root": str(tmp_path / name)})
        return fingerprint(moved, open_splits(dataset))["sha256"]  # type: ignore[return-value]

    first = of("one")
    assert of("two") == first
    file = tmp_path / "two/a/1.png"
    content = bytearray(file.read_bytes())
    content[-20] ^= 1  # same size, one bit
    file.write_bytes(content)
    changed = of("two")
    os.rename(file, tmp_path / "two/a/one.png")
    renamed = of("two")
    (tmp_path / "two/a/2.png").write_bytes(b"more")
    assert len({first, changed, renamed, of("two")}) == 4


def test_large_data_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: List[int] = []
    real = module.hash_content

    def counted(file: Any, budget: int) -> Any:
        found = real(file, budget)
        read.append(found[0])
        return found

    monkeypatch.setattr(module, "hash_content", counted)
    for number in range(40):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    with open(tmp_path / "huge.bin", "wb") as file:
        file.truncate(1 << 40)
        file.seek((1 << 39) - 10)
        file.write(b"middle")
    describe = module.describe_files
    before = describe([str(tmp_path)])
    assert before["files"] == 41 and len(read) == 41 and sum(read) == 40_000  # blocks of the huge one
    with open(tmp_path / "huge.bin", "r+b") as file:
        file.seek((1 << 39) - 10)
        file.write(b"MIDDLE")
    assert describe([str(tmp_path)])["sha256"] != before["sha256"]
    monkeypatch.setattr(module, "MAX_READ_FILES", 5)
    monkeypatch.setattr(module, "BUDGET_BYTES", 2500)
    read.clear()
    few = describe([str(tmp_path)])
    assert len(read) == 5 and sum(read) <= 2500
    assert describe([str(tmp_path)]) == few  # the same choice each time
    os.truncate(tmp_path / "7.bin", 999)
    assert describe([str(tmp_path)])["sha256"] != few["sha256"]  # names and sizes of all count
    monkeypatch.setattr(module, "MAX_FILES", 10)
    read.clear()
    assert describe([str(tmp_path)])["sha256"] is None and not read


@pytest.mark.slow
def test_data_without_files(describe_run: Callable[..., Any]) -> None:
    def of(dataset: Any, **settings: Any) -> Dict[str, Any]:
        changed = dataset.model_copy(update=settings)
        return fingerprint(changed, open_splits(changed))

    dataset = describe_run().dataset
    digits = of(dataset)
    assert digits["files"] == {} and digits["splits"]["train"]["samples"] == 1257 and of(dataset) == digits
    assert of(dataset, split_seed=1)["sha256"] != digits["sha256"]
    # Generated when they are fetched: nothing of them is in memory.
    dataset = describe_run("task=detection", "dataset.num_train=20").dataset
    scenes = of(dataset)
    assert scenes == of(dataset)
    assert scenes["splits"]["train"]["sha256"] != of(dataset, split_seed=5)["splits"]["train"]["sha256"]


def test_arrays_of_objects_count_by_their_values() -> None:
    """Addresses of masks made each resumed run of generated instance segmentation look like one on other data."""

    def hash_of(*codes: bytes) -> str:
        array = np.empty((1, 2), object)
        array[0, 0], array[0, 1] = 1000.5, tuple(bytes(bytearray(code)) for code in codes)
        digest = hashlib.sha256()
        _update(digest, array)
        return digest.hexdigest()

    assert hash_of(b"first", b"second") == hash_of(b"first", b"second") != hash_of(b"first", b"other")
