"""`dataset.batch_size=auto`: the batch that fits memory, and the same one in a resumed run."""

from __future__ import annotations

import logging

import pytest

from mxtrain.training.batch_size import largest_fitting
from mxtrain.training.build import build_run


@pytest.mark.parametrize(
    "batch_size, divisor, available, expected",
    [
        (128, 1, 1e9, 128),
        (128, 1, 6400, 64),
        (128, 1, 6399, 32),
        (120, 24, 5000, 48),
        (128, 4, 0, 4),
        (6, 6, 0, 6),
    ],
)
def test_halved_until_it_fits(batch_size: int, divisor: int, available: float, expected: int) -> None:
    assert largest_fitting(batch_size, divisor, 100.0, available) == expected


@pytest.mark.slow
def test_resumed_run_keeps_its_batch(tmp_path, describe_run, caplog) -> None:
    """More samples would mean a larger batch, and a resumed run with the number typed is the same run."""
    from PIL import Image

    root = tmp_path / "images"

    def add(count: int) -> None:
        for name in ("a", "b"):
            (root / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                Image.new("L", (8, 8), number % 256).save(root / name / f"{number}.png")

    caplog.set_level(logging.INFO)
    words = (
        "dataset=image_folder",
        f"dataset.root={root}",
        "dataset.image_size=8",
        "model=mlp",
        "logger=jsonl",
        "dataset.batch_size=auto",
    )
    add(20)
    first = build_run(describe_run(*words, "trainer.max_steps=1"), tmp_path / "run")
    first.runner.train(first.info)
    add(200)
    second = build_run(describe_run(*words, "trainer.max_steps=2", "checkpoint.changes=[data]"), tmp_path / "run")
    assert second.runner.state.step == 1
    assert "dataset.batch_size=8, as chosen when this run began (auto would now choose 16)" in caplog.text
    second.runner.train(second.info)
    assert second.runner.state.step == 2
