"""Guards standard output and error: a run goes on when they are closed, full or no longer read."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Iterator, Optional

from mxtrain.logger.patient_stream import PatientStream


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
