"""Text streams that never stop a run: writes to a closed, full or unread standard output are dropped."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, BinaryIO, Callable, Iterator, Optional, TextIO


class PatientStream(io.TextIOBase):
    """A text stream that swallows what cannot be written: a run goes on when its reader is gone or its disk full."""

    def __init__(self, stream: TextIO, is_closed: bool = False) -> None:
        super().__init__()
        self._stream = stream
        self.is_closed = is_closed
        """True if the shell had closed the replaced stream, so that all output is lost."""
        self.failure: Optional[OSError] = None
        """The error of the first failed write."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has a plain attribute
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def buffer(self) -> BinaryIO:
        return self._stream.buffer

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        try:
            self._attempt(lambda: self._stream.write(text))
        except UnicodeEncodeError:  # a file's name that is no text in this encoding
            readable = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
            self._attempt(lambda: self._stream.write(readable))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def reconfigure(self, **options: Any) -> None:
        """Changes the encoding and the like, where the stream can."""
        change = getattr(self._stream, "reconfigure", None)
        if change is not None:
            self._attempt(lambda: change(**options))

    def flush_or_discard(self) -> None:
        """Make sure that Python's own flush at exit cannot fail, which would change the exit code to 120."""
        if not self._attempt(self._stream.flush):
            self._discard()

    def _attempt(self, action: Callable[[], object]) -> bool:
        try:
            action()
            return True
        except BrokenPipeError as error:
            self.failure = self.failure or error
            self._discard()
        except OSError as error:  # disk full, terminal gone
            self.failure = self.failure or error
        except UnicodeEncodeError:
            raise
        except ValueError:
            pass  # stream closed
        return False

    def _discard(self) -> None:
        """Send this and whatever else is still written to the stream nowhere."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def patient_streams() -> Iterator[PatientStream]:
    """Replaces both streams by ones that swallow what cannot be written; yields standard output."""
    _fill_closed()
    before = sys.stdout, sys.stderr
    output = PatientStream(sys.stdout or open(os.devnull, "w"), is_closed=sys.stdout is None)
    sys.stdout, sys.stderr = output, PatientStream(sys.stderr or open(os.devnull, "w"))
    try:
        yield output
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, PatientStream):
                stream.flush_or_discard()
        sys.stdout, sys.stderr = before


def _fill_closed() -> None:
    """Opens /dev/null for each stream that the shell has closed (`>&-`): no other file may get its number."""
    while True:
        number = os.open(os.devnull, os.O_RDWR)
        if number > 2:
            os.close(number)
            return


def unwritten(output: PatientStream) -> Optional[str]:
    """The sentence about results that could not be printed; None if they were, or where they are not wanted any more
    (`| head`)."""
    if output.failure is None or isinstance(output.failure, BrokenPipeError):
        return None
    return f"standard output cannot be written: {output.failure.strerror}. Let it go to a file or a terminal."
