"""The cause with which a child process ends, as JSON instead of printed text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxtrain.cluster.reported_cause import CAUSE_FILE, ReportedCause, report_cause
from mxtrain.errors import RUN_DIR_SETTING, run_dir_set_by, run_dir_setting


@pytest.mark.slow
def test_a_child_reports_its_cause(tmp_path: Path) -> None:
    with ReportedCause() as reported:
        command = [sys.executable, "-m", "mxtrain", "modle=mlp"]
        done = subprocess.run(command, env={**os.environ, **reported.environment}, cwd=tmp_path, capture_output=True)
    assert done.returncode == 2 and reported.step == 0
    assert "Did you mean 'model'" in reported.cause and "error: " not in reported.cause


def test_last_reported_cause_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with ReportedCause() as reported:
        monkeypatch.setenv(CAUSE_FILE, reported.environment[CAUSE_FILE])
        report_cause("first")
        report_cause("error: of a library", step=7)
    assert (reported.cause, reported.step) == ("error: of a library", 7)
    report_cause("nobody reads this any more")
    with ReportedCause() as silent:
        pass
    assert (silent.cause, silent.step) == ("", None)


@pytest.mark.parametrize("content", ["", "[]", '{"cause": 1, "step": 2}', '{"cause": "x"}'])
def test_invalid_content_is_no_cause(content: str) -> None:
    with ReportedCause() as reported:
        Path(reported.environment[CAUSE_FILE]).write_text(content)
    assert (reported.cause, reported.step) == ("", None)


def test_messages_name_the_run_directory_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_dir_setting() == "hydra.run.dir"
    with run_dir_set_by("dir"):
        assert run_dir_setting() == "dir"
    monkeypatch.setenv(RUN_DIR_SETTING, "dir")  # of a child process
    assert run_dir_setting() == "dir"
