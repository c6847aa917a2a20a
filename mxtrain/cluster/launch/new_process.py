"""Trains in a new process: for a Python program, which shows its output, or for a few steps that are measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, Dict, List, Sequence, TextIO, Tuple

from mxtrain.archive.run_files import ROWS_FILE
from mxtrain.archive.run_records import read_rows
from mxtrain.archive.status import read_status_object
from mxtrain.cluster.process import run_silently, start_child
from mxtrain.cluster.reported_cause import ReportedCause
from mxtrain.config.override_text import quote
from mxtrain.config.search_path import module_command
from mxtrain.errors import RUN_DIR_SETTING, run_dir_setting
from mxtrain.files.temporary import temporary_root

REPLACED = (
    "lr_scheduler",
    "logger",
    "checkpoint",
    "early_stopping",
    "callback",
    "trainer.max_",
    "trainer.val_",
    "trainer.reference_batch_size",
    "trainer.log_interval",
    "trainer.test",
    "hydra.",
)
"""Prefixes of settings that a measured run does not take from the user: its length, learning rates and outputs."""
MEASURED_RUN = (
    "logger=jsonl",
    "checkpoint=off",
    "early_stopping=off",
    "callback=default",
    "trainer.max_time=null",
    # The last step of a run is always validated, so the validation is made as short as possible.
    "trainer.limit_val_batches=1",
    "trainer.test=false",
)
"""Settings of all measured runs."""


def train_measured(
    flags: Sequence[str], overrides: Sequence[str], settings: Sequence[str]
) -> Tuple[int, str, List[Dict[str, Any]]]:
    """Trains in new processes, without output and in a temporary folder.

    Args:
        flags: flags by which the run finds the user's own configuration.
        overrides: overrides of the user, of which those in `REPLACED` are left out.
        settings: further overrides.

    Returns:
        Exit code, cause of the end, and the rows of training in metrics.jsonl.
    """
    words = [word for word in overrides if not word.lstrip("+~").startswith(REPLACED)]
    with (
        tempfile.TemporaryDirectory(prefix="mxtrain-measured-", dir=temporary_root()) as folder,
        ReportedCause() as reported,
    ):
        file = Path(folder) / "run" / ROWS_FILE
        arguments = [*flags, *words, *MEASURED_RUN, *settings, f"hydra.run.dir={file.parent}"]
        code = run_silently([*module_command("mxtrain"), "train", *arguments], reported.environment)
        rows = [row for row in read_rows(file) if row.get("split") == "train"] if file.is_file() else []
    return code, reported.cause, rows


def train_in_new_process(given: Sequence[str], run_dir: Path, names_dir: bool) -> Tuple[int, str, int]:
    """Runs ``python -m mxtrain train`` with these arguments, and waits for its end.

    A KeyboardInterrupt here is passed on, so that it saves a checkpoint and ends; a second one ends it at once. If this
    process dies, the kernel kills the training process, and the same call continues the run.

    Args:
        given: flags and overrides.
        run_dir: directory of the run.
        names_dir: True to add an override with the run directory, because `given` do not contain one.

    Returns:
        Exit code, cause of the end, and number of steps.
    """
    arguments = [*given, *([f"hydra.run.dir={quote(str(run_dir))}"] if names_dir else [])]
    with ReportedCause() as reported:
        # In a session of its own: a terminal's Ctrl-C is passed on once.
        process = start_child(
            [sys.executable, "-m", "mxtrain", "train", *arguments],
            env={**os.environ, **reported.environment, RUN_DIR_SETTING: run_dir_setting()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stderr is not None
        # Notebooks show text written to sys.stdout, not to file descriptor 1.
        readers = [
            threading.Thread(target=_copy, args=(process.stdout, sys.stdout)),
            threading.Thread(target=_copy, args=(process.stderr, sys.stderr)),
        ]
        for reader in readers:
            reader.start()
        try:
            _wait(process)
        finally:
            if process.poll() is None:
                process.kill()
            for reader in readers:
                reader.join()
            process.wait()
    code = process.returncode
    ended = (
        f"was ended by {signal.Signals(-code).name}"
        if code < 0
        else f"ended with exit code {code}; its output says why"
    )
    cause = reported.cause or f"the process {ended}"
    return process.returncode, cause, _steps(run_dir) if reported.step is None else reported.step


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()  # a second KeyboardInterrupt leaves here


def _copy(source: IO[bytes], target: TextIO) -> None:
    with source:
        while piece := source.read1(1 << 16):  # type: ignore[attr-defined]  # it is buffered
            target.write(piece.decode("utf-8", "replace"))
            target.flush()


def _steps(run_dir: Path) -> int:
    try:
        return int(read_status_object(run_dir)["step"])
    except (KeyError, TypeError, ValueError):
        return 0
