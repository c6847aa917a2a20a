"""Checks what `auto` means where it depends on the data: batch size and image size; and the estimates of a run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Sequence, Tuple

import numpy as np
import pytest
from PIL import Image
from waiting import wait_until

from mxtrain.data.spec import BaseDataset, choose_batch_size, open_splits, samples_per_step
from mxtrain.errors import CheckpointError
from mxtrain.tables.feature_table import FeatureTable
from mxtrain.training.build import build_run
from mxtrain.training.estimate import Estimate, shown_time
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.lenet import LeNet


def write_folder(root: Path, sizes: Sequence[Tuple[int, int]]) -> Path:
    """A class folder each for `a` and `b` with an image of each (width, height)."""
    for name, shade in (("a", 40), ("b", 200)):
        (root / name).mkdir(parents=True)
        for number, size in enumerate(sizes):
            Image.new("RGB", size, (shade, number % 256, 0)).save(root / name / f"{number}.png")
    return root


@pytest.mark.parametrize(
    "num_samples, divisor, batch_size",
    [(1, 1, 1), (7, 1, 4), (100, 1, 8), (720, 1, 32), (4096, 1, 256), (10**9, 1, 256), (720, 3, 33), (5, 8, 8)],
)
def test_a_batch_is_chosen_for_the_number_of_samples(num_samples: int, divisor: int, batch_size: int) -> None:
    dataset = choose_batch_size(FeatureTable(train="rows.csv"), num_samples, divisor)
    assert dataset.batch_size == batch_size and dataset.batch_unit == ("batch_size", batch_size)


def test_a_typed_batch_stays() -> None:
    assert choose_batch_size(BaseDataset(batch_size=100), 10).batch_size == 100
    assert samples_per_step(BaseDataset(batch_size="auto")) == BaseDataset.largest_batch == 128


@pytest.mark.parametrize(
    "sizes, side",
    [([(32, 32)], 32), ([(100, 150)], 128), ([(20, 20), (70, 80), (500, 400)], 96), ([(640, 480)], 224)],
)
def test_an_image_size_is_chosen_from_the_files(tmp_path: Path, sizes: Sequence[Tuple[int, int]], side: int) -> None:
    root = write_folder(tmp_path / "images", [*sizes, *sizes])
    splits = open_splits(ImageFolder(root=str(root)))
    assert tuple(splits.shape) == (3, side, side) and splits.decoding is not None
    assert splits.decoding.shape == (3, side, side)
    typed = open_splits(ImageFolder(root=str(root), image_size=[48, 40]))
    assert tuple(typed.shape) == (3, 48, 40)


def test_files_that_cannot_be_read_do_not_count(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images", [(40, 40)] * 3)
    (root / "a" / "0.png").write_bytes(b"no image")
    assert tuple(open_splits(ImageFolder(root=str(root), mean=[0.5] * 3, std=[0.2] * 3)).shape) == (3, 64, 64)


def test_lenet_gets_large_images_smaller() -> None:
    assert LeNet().input_shape((3, 28, 20)) == (3, 28, 20)
    assert LeNet().input_shape((3, 224, 224)) == (3, 64, 64)
    assert LeNet().input_shape((1, 448, 224)) == (1, 64, 32)


@pytest.mark.slow
def test_a_folder_of_small_images_trains_a_small_network_and_resumes(
    tmp_path: Path, describe_run: Any, caplog: Any
) -> None:
    root, run_dir = write_folder(tmp_path / "images", [(32, 32)] * 10), tmp_path / "run"
    words = (f"dataset.root={root}", "dataset=image_folder", "logger=jsonl", "model.depth=8", "model.width=0.25")

    def train(*more: str) -> Any:
        run = build_run(describe_run(*words, *more), run_dir)
        return run, run.runner.train(run.info)

    caplog.set_level(logging.INFO)
    run, result = train("trainer.max_epochs=1", "trainer.max_steps=1")
    assert run.info.input_shape == (3, 32, 32) and run.info.config["model"]["_target_"].endswith("ResNet")
    assert "dataset.image_size=32: 32 px is the median shorter side of 20 images (auto)" in caplog.text
    assert "dataset.batch_size=8 for 17 training samples (auto)" in caplog.text and result.step == 1
    # The same numbers typed are the same description; others are not.
    with pytest.raises(CheckpointError, match=r"Type dataset\.batch_size=8\."):
        train("trainer.max_steps=2", "dataset.batch_size=4")
    with pytest.raises(CheckpointError, match=r"Type dataset\.image_size=\[32,32\]\."):
        train("trainer.max_steps=2", "dataset.image_size=64")
    run, _ = train("trainer.max_steps=2", "dataset.batch_size=8", "dataset.image_size=32")
    assert run.info.resumed_step == 1


@pytest.mark.slow
def test_a_size_that_new_images_would_change_is_refused(tmp_path: Path, describe_run: Any) -> None:
    root, run_dir = write_folder(tmp_path / "images", [(32, 32)] * 5), tmp_path / "run"
    words = (f"dataset.root={root}", "dataset=image_folder", "logger=jsonl", "model.depth=8", "model.width=0.25")
    run = build_run(describe_run(*words, "trainer.max_steps=1", "dataset.batch_size=4"), run_dir)
    run.runner.train(run.info)
    for name in ("a", "b"):
        for number in range(20):
            Image.new("RGB", (90, 90), (number, 0, 0)).save(root / name / f"new{number}.png")
    with pytest.raises(CheckpointError, match=r"trained with images of 3x32x32, and now they are 3x96x96"):
        build_run(
            describe_run(*words, "trainer.max_steps=2", "dataset.batch_size=4", "checkpoint.changes=[data]"), run_dir
        )


@pytest.mark.zoo
def test_memory_estimate_is_near_the_measurement(tmp_path: Path, describe_run: Any) -> None:
    """The arrays of a step of 304 MiB of outputs, in a process of its own."""
    import subprocess
    import sys

    code = """if True:
        import re, sys
        from pathlib import Path
        from mxtrain.training.build import build_run
        from mxtrain.composing.composer import Composer
        from mxtrain.composing.environment import check
        from mxtrain.runtime.memory import resident_memory
        from mxtrain.training.estimate import estimate_training
        words = ["dataset=synthetic", "dataset.image_size=64", "dataset.batch_size=64", "dataset.num_samples=256",
                 "trainer.max_steps=2", "trainer.limit_val_batches=1", "trainer.test=false", "logger=jsonl",
                 "checkpoint.save_on_end=false"]
        with Composer() as composer:
            run = build_run(check(composer.compose(words)), Path(sys.argv[1]))
        step = run.runner.context.step.strategy
        estimate = estimate_training(step.objective, step.layout, 4, 256)
        run.runner.train(run.info)
        peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024
        print(estimate.step_bytes, peak - estimate.process_bytes)
    """
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    estimated, measured = map(float, done.stdout.split())
    assert 0.6 < measured / estimated < 1.6, (estimated, measured)


@pytest.mark.parametrize(
    "share, whole, num_samples, expected",
    [
        (100_000_000, 100_000_000, 1257, 1257),
        (50_000_000, 100_000_000, 1257, 628),
        (64, 64, 1257, 64),
        (32, 64, 1257, 32),
        (100, 0, 50, 50),
        (10, 0, 1257, 10),
        (8, 64, 3, 1),
    ],
)
def test_the_estimate_counts_the_batch_that_is_taken(share, whole, num_samples, expected, monkeypatch) -> None:
    from types import SimpleNamespace

    from mxtrain.model.graph.trace import NotTraceable
    from mxtrain.training import estimate

    traced = []

    def trace(network, input_shape, batch_size, training):
        traced.append(batch_size)
        raise NotTraceable("no network")

    monkeypatch.setattr(estimate, "trace", trace)
    objective = SimpleNamespace(
        precision=None, network=None, input_shape=(3,), batch_size=share, global_batch_size=whole
    )
    assert estimate.estimate_training(objective, None, 1, num_samples) is None and traced == [expected]


def test_estimates_are_shown_only_for_large_runs() -> None:
    assert Estimate(100e6, None, 300 << 20, True).sentence == ""
    said = Estimate(3 << 30, 130.0, 1 << 30, True).sentence
    assert said == "estimate: training takes about 4 GiB of memory, and 2 min an epoch"
    assert "on all devices, besides the weights" in Estimate(3 << 30, None, 1 << 30, False).sentence
    assert Estimate(1 << 50, None, 0, True).exceeds_memory and not Estimate(1 << 50, None, 0, False).exceeds_memory
    assert list(map(shown_time, (0.2, 44, 100, 3000, 9000))) == ["1 s", "40 s", "2 min", "50 min", "2.5 h"]


@pytest.mark.slow
def test_plain_output_announces_the_first_step(tmp_path: Path) -> None:
    import io

    from mxtrain.callback.protocol import RunInfo
    from mxtrain.logger.progress import RunProgress
    from mxtrain.logger.views import PlainView
    from mxtrain.terminal.console import open_console

    stream = io.StringIO()
    info = RunInfo(tmp_path, {}, 0, 10, 5, (1,), None, [])  # type: ignore[arg-type]  # no network
    view = PlainView(open_console(stream), RunProgress(info), interval_s=0.0)
    wait_until(lambda: "working on the first steps for 1 s" in stream.getvalue(), 10)
    view.close()


@pytest.mark.slow
def test_batch_larger_than_the_data_names_the_setting(tmp_path: Path, describe_run: Any, caplog: Any) -> None:
    build_run(describe_run("dataset.batch_size=100000000", "logger=jsonl"), tmp_path / "run")
    assert "Type dataset.batch_size=auto" in caplog.text


@pytest.mark.slow
def test_bundled_data_keep_their_batches(describe_run: Any) -> None:
    """Results of the examples must not change: so many samples are there that auto means the largest batch."""
    dataset = describe_run("task=token_classification").dataset
    assert dataset.batch_size == "auto" and choose_batch_size(dataset, 32_571).batch_size == 32
    assert np.all(
        [
            describe_run(word).dataset.batch_size == size
            for word, size in (
                ("dataset=digits", 64),
                ("task=tabular", 32),
                ("dataset=number_table", 32),
                ("task=masked_language_modeling", 32),
            )
        ]
    )
