"""Files that a run writes to while its directory disappears or its disk is full."""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from mxtrain.logger.files import LogFile

RECORD = logging.LogRecord("mxtrain", logging.INFO, __file__, 1, "a line", None, None)


def test_log_with_a_removed_folder_does_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    log = LogFile(folder / "train.log", delay=True)
    log.emit(RECORD)
    log.close()
    assert (folder / "train.log").read_text() == "a line\n"
    shutil.rmtree(folder)
    log = LogFile(folder / "train.log", delay=True)
    log.emit(RECORD)
    assert not folder.exists() and capsys.readouterr().err == ""


def test_log_on_a_full_disk_fails_silently(capsys: pytest.CaptureFixture[str]) -> None:
    log = LogFile("/dev/full", delay=True)
    log._open = lambda: open("/dev/full", "w")  # type: ignore[method-assign]
    log.emit(RECORD)
    assert capsys.readouterr().err == ""
    with suppress(OSError):  # what waits in the stream can't be written either
        log.close()


def test_a_closed_log_is_not_opened_again(tmp_path):
    handler, log = LogFile(tmp_path / "train.log"), logging.getLogger("test_a_closed_log")
    log.addHandler(handler)
    try:
        log.warning("first")
        handler.close()
        log.warning("second")
    finally:
        log.removeHandler(handler)
    assert handler.stream is None and (tmp_path / "train.log").read_text() == "first\n"
