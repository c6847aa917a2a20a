from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from mxtrain.errors import RunDirectoryError
from mxtrain.logger.csv import prepare_table
from mxtrain.logger.jsonl import Jsonl, drop_rows_after, encode_row


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_written_unchanged(fake_run):
    fake_run.drive(Jsonl().build(), 1, 30)
    assert read(fake_run.run_dir / "metrics.jsonl") == fake_run.rows(30)


def test_rows_are_readable_at_once(fake_run):
    logger = Jsonl().build()
    fake_run.drive(logger, 1, 15, end=False)
    assert read(fake_run.run_dir / "metrics.jsonl") == fake_run.rows(15)
    logger.on_end(fake_run.result(15))


@pytest.mark.parametrize("torn", [b"", b'{"step": 16, "ep', b"\0\0\0\0", b'{"step": 16}', b"12\n"])
@pytest.mark.parametrize("resumed_step", [0, 5, 10])
def test_resumed_run_drops_rows_after_its_step(fake_run, torn, resumed_step):
    fake_run.drive(Jsonl().build(), 1, 15)
    with open(fake_run.run_dir / "metrics.jsonl", "ab") as file:
        file.write(torn)
    fake_run.drive(Jsonl().build(), resumed_step + 1, 30)
    assert read(fake_run.run_dir / "metrics.jsonl") == fake_run.rows(30)


def test_rows_out_of_order_are_kept_by_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(encode_row({"step": step}) for step in (1, 9, 2)))
    drop_rows_after(path, 2)
    assert read(path) == [{"step": 1}, {"step": 2}]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_strict_json():
    row = {"step": np.int64(1), "loss": float("nan"), "accuracy": np.float32("inf"), "list": [1.5, float("-inf")]}
    text = encode_row(row).decode()
    strict = json.loads(text, parse_constant=pytest.fail)
    assert strict == {"step": 1, "loss": None, "accuracy": None, "list": [1.5, None]}
    assert encode_row({"loss": 0.1 + 0.2}) == b'{"loss": 0.30000000000000004}\n'


def test_rows_refused_by_a_full_disk_are_written_later(fake_run, file_size_limit):
    logger = Jsonl().build()
    path = fake_run.run_dir / "metrics.jsonl"
    fake_run.drive(logger, 1, 5, end=False)
    size = path.stat().st_size
    with file_size_limit(size + 50):  # room for half a row
        fake_run.five_steps(logger, 10)
        assert path.stat().st_size == size, "no torn row"
    for step in (15, 20):
        fake_run.five_steps(logger, step)
    logger.on_end(fake_run.result(20))
    assert read(path) == fake_run.rows(20)


@pytest.mark.slow
def test_kill_at_any_moment(fake_run, tmp_path):
    """Killed while it writes, again and again; each time the next process goes on from the last checkpoint."""
    code = textwrap.dedent(
        """
        import sys; sys.path.insert(0, sys.argv[3])
        from conftest import FakeRun; from mxtrain.logger.jsonl import Jsonl
        from pathlib import Path
        run, checkpoint = FakeRun(Path(sys.argv[1])), Path(sys.argv[2])
        start = int(checkpoint.read_text())
        logger = Jsonl().build()
        logger.on_start(run.info(start))
        print("started", flush=True)
        for step in range(start + 5, 10**6, 5):
            run.five_steps(logger, step)
            if step % 10 == 0:
                new = checkpoint.with_suffix(".new"); new.write_text(str(step)); new.replace(checkpoint)
        """
    )
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_text("0")
    arguments = [sys.executable, "-c", code, str(tmp_path), str(checkpoint), os.path.dirname(__file__)]
    for delay in (0.001, 0.011, 0.037):
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    last = int(checkpoint.read_text())
    assert last > 0
    fake_run.drive(Jsonl().build(), last + 1, last + 10)
    assert read(tmp_path / "metrics.jsonl") == fake_run.rows(last + 10)


def test_rows_of_unknown_origin_are_dropped(tmp_path):
    """Numbers beyond float64 and int64, deep nesting, and a line that is too long to be a row."""
    path, good = tmp_path / "metrics.jsonl", b'{"step": 1}\n'
    odd = [b'{"step": 1e400}\n', b'{"step": ' + b"9" * 400 + b"}\n", b"[" * 2_000_000 + b"\n", b'{"step": NaN}\n']
    path.write_bytes(good + b"".join(odd) + b'{"step": 2}\n')
    drop_rows_after(path, 5)
    assert path.read_bytes() == good + b'{"step": 2}\n'


@pytest.mark.parametrize("drop", [drop_rows_after, lambda path, step: prepare_table(path, ["step"], step)])
def test_file_without_end_is_rejected(tmp_path, drop):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a named pipe"), ("zeros", "a device")):
        with pytest.raises(RunDirectoryError, match=f"it is {kind}, and only regular files are read"):
            drop(tmp_path / name, 5)


def test_table_with_a_huge_cell_is_rejected(tmp_path):
    (tmp_path / "metrics.csv").write_text("step\n" + "1" * 200_000 + "\n")
    before = csv.field_size_limit(131_072)  # readers of tables raise the limit of the process
    try:
        with pytest.raises(RunDirectoryError, match="is not a table of an earlier run"):
            prepare_table(tmp_path / "metrics.csv", ["step"], 5)
    finally:
        csv.field_size_limit(before)
