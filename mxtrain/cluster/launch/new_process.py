"""Trains in a new process for a Python program, and shows its output there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Sequence, TextIO, Tuple

from mxtrain.archive.status import read_status_object
from mxtrain.cluster.process import start_child
from mxtrain.cluster.reported_cause import ReportedCause
from mxtrain.config.override_text import quote
from mxtrain.errors import RUN_DIR_SETTING, run_dir_setting


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
