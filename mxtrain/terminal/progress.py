"""Shows the progress of long work on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any, Optional, TextIO, Type

from mxtrain.terminal.durations import format_seconds


class WorkProgress:
    """Receives the progress of long work. The work is done in a context, `with progress:`, which may be entered several
    times. This base class shows nothing; it is the default of workflows."""

    def __enter__(self) -> WorkProgress:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        pass

    def begin(self, description: str, total: int) -> None:
        """Starts the next part of the work.

        Args:
            description: description of the part, e.g. "reading".
            total: final count; 0 = unknown.
        """

    def advance(self, count: int) -> None:
        """Adds `count` to the work that is done."""


SILENT = WorkProgress()


class ProgressDisplay(WorkProgress):
    """Shows the progress of work that takes longer than `quiet_s`.

    It is updated by a separate thread, so also during a single long step.
    """

    def __init__(
        self,
        stream: Optional[TextIO] = None,
        *,
        quiet_s: float = 2.0,
        refresh_s: float = 0.2,
        plain_interval_s: float = 10.0,
    ) -> None:
        """Starts without work to show.

        Args:
            stream: output stream; default: standard error.
            quiet_s: seconds in which nothing is shown.
            refresh_s: seconds between two updates of the bar.
            plain_interval_s: seconds between two plain lines.
        """
        from mxtrain.terminal.console import open_console  # imports rich, which checking settings does not need

        self._console = open_console(stream or sys.stderr)
        self._quiet_s = quiet_s
        # A bar replaces itself, but lines in a file accumulate, so they are written less often.
        self._interval_s = refresh_s if self._console.is_terminal else plain_interval_s
        self._part, self._total, self._done, self._began_s = "", 0, 0, time.monotonic()
        self._is_over = threading.Event()

    def begin(self, description: str, total: int) -> None:
        self._part, self._total, self._done, self._began_s = description, total, 0, time.monotonic()

    def advance(self, count: int) -> None:
        self._done += count

    def __enter__(self) -> ProgressDisplay:
        self._is_over.clear()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _show(self) -> None:
        if self._is_over.wait(self._quiet_s):
            return
        if self._console.is_terminal:
            self._show_bar()
            return
        while True:
            self._console.print(self.line(), soft_wrap=True)
            if self._is_over.wait(self._interval_s):
                return

    def _show_bar(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        columns: Any = (BarColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=self._console, transient=True, auto_refresh=False) as bar:
            task = bar.add_task("", total=None)
            while True:
                bar.update(task, description=self.line(), total=self._total or None, completed=self._done)
                bar.refresh()
                if self._is_over.wait(self._interval_s):
                    return

    def line(self) -> str:
        """Returns the progress in one line."""
        elapsed_s = time.monotonic() - self._began_s
        if not self._total:
            return f"{self._part}, {format_seconds(elapsed_s)}"
        line = f"{self._part} {self._done:,} of {self._total:,} ({self._done / self._total:.0%})"
        remaining_s = elapsed_s * (self._total - self._done) / self._done if self._done else None
        return line if remaining_s is None else f"{line}, {format_seconds(remaining_s)} left"
