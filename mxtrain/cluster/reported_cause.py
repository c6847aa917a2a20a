"""The cause with which a child process of mxtrain ends, as JSON in a file, so that nothing reads its printed text."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Optional

from mxtrain.files.durable import encode_json
from mxtrain.files.json_form import problems_of
from mxtrain.files.json_text import read_json
from mxtrain.files.temporary import temporary_root
from mxtrain.files.unused_folders import locked_folder

CAUSE_FILE = "MXTRAIN_CAUSE_FILE"
"""Environment variable with the file to which a process writes the cause of its end."""


def report_cause(text: str, step: int = 0) -> None:
    """Tells the process that started this one why it ends; does nothing if none wants to know.

    Args:
        text: the cause.
        step: steps that the run has taken.
    """
    path = os.environ.get(CAUSE_FILE)
    if path is not None:
        with suppress(OSError):  # the reader has ended
            Path(path).write_bytes(encode_json({"cause": text, "step": step}))


class ReportedCause:
    """Receives the cause from a child process, which runs within it and gets `environment` in addition to its own."""

    cause = ""
    """The cause; empty if the process reported none."""
    step: Optional[int] = None
    """Steps that the run had taken; None if the process reported none."""

    def __enter__(self) -> ReportedCause:
        self._opened = ExitStack()
        folder = self._opened.enter_context(locked_folder(Path(temporary_root()), "mxtrain-cause-"))
        self._file = folder / "cause.json"
        self.environment = {CAUSE_FILE: str(self._file)}
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError, ValueError):
            content = read_json(self._file)
            if not any(problems_of(content, {"cause": str, "step": int})):
                self.cause, self.step = content["cause"], content["step"]
        self._opened.close()
