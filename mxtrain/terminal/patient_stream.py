"""Text streams that never stop a run: writes to a closed, full or unread standard output are dropped."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, BinaryIO, Callable, Iterator, Optional, TextIO


class PatientStream(io.TextIOBase):
    """Wraps a text stream and drops output that cannot be written, so that a run continues when the reader of its
    output has gone or the disk is full."""

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
            self._try(lambda: self._stream.write(text))
        except UnicodeEncodeError:  # e.g. a file name with letters that this encoding lacks
            readable = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
            self._try(lambda: self._stream.write(readable))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def reconfigure(self, **options: Any) -> None:
        """Changes the encoding and other options, if the stream supports that."""
        change = getattr(self._stream, "reconfigure", None)
        if change is not None:
            self._try(lambda: change(**options))

    def flush_or_discard(self) -> None:
        """Flushes the stream, or discards its buffer. If Python's flush at exit failed, the exit code would be 120."""
        if not self._try(self._stream.flush):
            self._discard()

    def _try(self, action: Callable[[], object]) -> bool:
        try:
            action()
            return True
        except BrokenPipeError as error:
            # A reader that has left does not come back, while a full disk may have room again.
            self.failure = self.failure or error
            self._discard()
        except OSError as error:  # disk full, terminal gone
            self.failure = self.failure or error
        except UnicodeEncodeError:  # a subclass of ValueError, which `write` handles
            raise
        except ValueError:
            pass  # the stream is closed
        return False

    def _discard(self) -> None:
        """Redirects the stream's descriptor to /dev/null, also for output that is still buffered."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def patient_streams() -> Iterator[PatientStream]:
    """Replaces sys.stdout and sys.stderr by `PatientStream`s in the `with` block; yields that of stdout."""
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
    """Opens /dev/null for each standard stream that the shell has closed (`>&-`).

    Otherwise the next opened file would get descriptor 1 or 2, and output of C code would be written into it.
    """
    while True:
        number = os.open(os.devnull, os.O_RDWR)
        if number > 2:
            os.close(number)
            return


def output_failure(output: PatientStream) -> Optional[str]:
    """Returns a sentence if results could not be printed; None if they were, or if the reader closed the pipe
    (`| head`)."""
    if output.failure is None or isinstance(output.failure, BrokenPipeError):
        return None
    return f"standard output cannot be written: {output.failure.strerror}. Let it go to a file or a terminal."
