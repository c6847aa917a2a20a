"""A console that never stops a run, and log records that appear above its progress bar instead of tearing it."""

from __future__ import annotations

import io
import logging
import sys
from typing import List, Optional, TextIO, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mxtrain.logger.patient_stream import PatientStream

PLAIN_WIDTH = 120
"""Columns of trees and tables that are not printed on a terminal."""

_PACKAGE = "mxtrain"


def open_console(stream: TextIO) -> Console:
    """A rich console on `stream`: colours and movement on a terminal only, wide lines elsewhere."""
    is_terminal = stream.isatty()
    # FORCE_COLOR and notebooks make rich write escape sequences or HTML, also if the output is no terminal.
    return Console(
        file=PatientStream(stream),
        force_terminal=is_terminal,
        force_jupyter=False,
        width=None if is_terminal else PLAIN_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def without_box(table: Table) -> Table:
    """Returns the table without frames, for a file or a pipe; other objects are returned unchanged."""
    if isinstance(table, Table):
        table.box, table.pad_edge = None, False
    return table


class ConsoleStream(io.TextIOBase):
    """A text stream whose whole lines are printed by a rich console, above its live display if it has one."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Nothing to do: an unfinished line waits for its end."""


class LogRedirection:
    """While open, log records that would go to the terminal go through a rich console.

    Handlers that print to standard output or error keep their level and format, only their stream changes. Where the
    package's records would reach no handler at all, one is added, so that warnings are seen.
    """

    def __init__(self, console: Console, redirect: bool) -> None:
        """Open the redirection.

        Args:
            console: Prints the records.
            redirect: Whether to redirect existing handlers: needed where a live display owns the terminal.
        """
        self._changed: List[Tuple[logging.StreamHandler, object]] = []
        self._added: Optional[logging.Handler] = None
        handlers = _handlers_of(logging.getLogger(_PACKAGE))
        stream = ConsoleStream(console)
        if redirect:
            terminals = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
            for handler in handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream in terminals:
                    self._changed.append((handler, handler.setStream(stream)))
        if not handlers:
            self._added = logging.StreamHandler(stream)
            self._added.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
            logging.getLogger(_PACKAGE).addHandler(self._added)

    def close(self) -> None:
        """Give the handlers their streams back."""
        for handler, stream in self._changed:
            handler.setStream(stream)
        self._changed.clear()
        if self._added:
            logging.getLogger(_PACKAGE).removeHandler(self._added)
            self._added = None


def _handlers_of(logger: logging.Logger) -> List[logging.Handler]:
    """All handlers that a record of `logger` reaches."""
    found: List[logging.Handler] = []
    current: Optional[logging.Logger] = logger
    while current:
        found.extend(current.handlers)
        current = current.parent if current.propagate else None
    return found
