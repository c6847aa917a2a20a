"""Opens consoles whose output never stops a run, and prints log records above a live progress bar."""

from __future__ import annotations

import io
import logging
import sys
from typing import List, Optional, TextIO, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mxtrain.terminal.patient_stream import PatientStream

PLAIN_WIDTH = 120
"""Columns of trees and tables that are not printed on a terminal."""

_PACKAGE = "mxtrain"


def open_console(stream: TextIO) -> Console:
    """Opens a rich console on `stream`, with colours and live displays only if it is a terminal."""
    is_terminal = stream.isatty()
    # With FORCE_COLOR or in a notebook, rich would write escape sequences or HTML also to files and pipes.
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
    """A text stream that prints complete lines with a rich console, above its live display if there is one."""

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
        """Does nothing: an incomplete line waits for its end."""


class LogRedirection:
    """Redirects log records for the terminal to a rich console until it is closed.

    Handlers that print to standard output or error keep their level and format; only their stream changes. If records
    of the package would reach no handler, one is added, so that warnings are visible.
    """

    def __init__(self, console: Console, redirect: bool) -> None:
        """Starts the redirection.

        Args:
            console: console that prints the records.
            redirect: True to redirect existing handlers, which a live display on the terminal requires.
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
        """Restores the streams of the handlers."""
        for handler, stream in self._changed:
            handler.setStream(stream)
        self._changed.clear()
        if self._added:
            logging.getLogger(_PACKAGE).removeHandler(self._added)
            self._added = None


def _handlers_of(logger: logging.Logger) -> List[logging.Handler]:
    """Returns all handlers that a record of `logger` reaches, including those of its parents."""
    handlers: List[logging.Handler] = []
    current: Optional[logging.Logger] = logger
    while current:
        handlers.extend(current.handlers)
        current = current.parent if current.propagate else None
    return handlers
