"""Progress on standard error: nothing at first, then lines, or a bar on a terminal."""

from __future__ import annotations

import io
import re

from waiting import wait_until

from mxtrain.terminal.progress import SILENT, ProgressDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quick_work_shows_no_progress() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream) as display:
        display.begin("reading", 5)
        display.advance(5)
    assert stream.getvalue() == ""


def test_lines_show_progress() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream, quiet_s=0.01, plain_interval_s=0.01) as display:
        display.begin("opening", 0)
        wait_until(lambda: "opening, 0.0s\n" in stream.getvalue())
        display.begin("reading", 2000)
        wait_until(lambda: "reading 0 of 2,000 (0%)\n" in stream.getvalue())
        display.advance(500)
        wait_until(lambda: re.search(r"reading 500 of 2,000 \(25%\), \d+\.\ds left\n", stream.getvalue()) is not None)
    assert "\x1b" not in stream.getvalue()


def test_display_is_opened_again() -> None:
    stream = io.StringIO()
    display = ProgressDisplay(stream, quiet_s=0.01, plain_interval_s=0.01)
    for name in ("reading", "writing"):
        with display:
            display.begin(name, 0)
            wait_until(lambda name=name: name in stream.getvalue())  # type: ignore[misc]
        assert not display._thread.is_alive()
    with SILENT:
        SILENT.begin("nothing", 1)
        SILENT.advance(1)


def test_bar_is_erased_at_the_end() -> None:
    stream = Terminal()
    with ProgressDisplay(stream, quiet_s=0.01, refresh_s=0.01) as display:
        display.begin("reading", 10)
        display.advance(4)
        wait_until(lambda: "reading 4 of 10 (40%)" in stream.getvalue())
    assert stream.getvalue().rstrip().endswith("\x1b[2K")  # the line is erased


def test_thread_ends_when_the_work_fails() -> None:
    display = ProgressDisplay(io.StringIO(), quiet_s=60)
    try:
        with display:
            raise ValueError
    except ValueError:
        pass
    assert not display._thread.is_alive()
