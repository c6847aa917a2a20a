"""Writes a TensorBoard event file in a background thread, so that training never waits for drawing or for a disk.

tensorboardX supplies the messages and checksums, but not the file. Its writer gives two files of the same second the
same name, which overwrites the first one, and blocks the caller for ever after its thread has died of a full disk.
"""

from __future__ import annotations

import logging
import queue
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Callable, Iterable, Optional

from mxtrain.engine.late_modules import imported_late
from mxtrain.logger.files import AppendedFile, OnceLogger

# tensorboardX imports boto3 if it is installed, in 0.16 s, but a run writes its events into local files.
with imported_late(("boto3",)):
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import masked_crc32c

_LOG = logging.getLogger(__name__)

MAX_WAITING_JOBS = 1000


class EventFile:
    """One event file of a run directory. `add` passes work to the writing thread and returns at once."""

    def __init__(self, run_dir: Path, first_step: int) -> None:
        """Creates a new file in `run_dir`.

        Args:
            run_dir: folder that TensorBoard shows as a run.
            first_step: step from which TensorBoard hides the points of older files in the folder.

        Raises:
            RunDirectoryError: the file cannot be opened.
        """
        now_ns = time.time_ns()
        # TensorBoard reads the files of a folder in the order of their names: seconds, host, then nanoseconds.
        name = f"events.out.tfevents.{now_ns // 10**9:010d}.{socket.gethostname()}.{now_ns % 10**9:09d}"
        self._file = AppendedFile(Path(run_dir) / name)
        self._jobs: queue.Queue[Optional[Callable[[], None]]] = queue.Queue(MAX_WAITING_JOBS)
        self._problems = OnceLogger(_LOG)
        self._append(Event(wall_time=now_ns / 1e9, file_version="brain.Event:2"))
        restart = SessionLog(status=SessionLog.START)
        self._append(Event(wall_time=now_ns / 1e9, step=first_step, session_log=restart))
        self._file.flush()
        self._thread = threading.Thread(target=self._run, name="mxtrain-tensorboard", daemon=True)
        self._thread.start()

    def add(self, make_summaries: Callable[[], Iterable[Summary]], step: int) -> None:
        """Makes the thread call `make_summaries` and write the results as events of `step`."""
        wall_time = time.time()

        def write() -> None:
            for summary in make_summaries():
                self._append(Event(wall_time=wall_time, step=step, summary=summary))

        self._put(write)

    def add_graph(self, make_graph_def: Callable[[], bytes]) -> None:
        """Makes the thread call `make_graph_def` and write the serialized GraphDef that it returns."""
        wall_time = time.time()
        self._put(lambda: self._append(Event(wall_time=wall_time, graph_def=make_graph_def())))

    def flush(self, timeout_s: float) -> bool:
        """Waits at most `timeout_s` seconds until all added events are on the disk. Returns True if they are."""
        done = threading.Event()

        def sync() -> None:
            self._file.flush(sync=True)
            done.set()

        return self._put(sync) and done.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Writes the waiting events, stops the thread and closes the file; gives up after `timeout_s` seconds."""
        deadline_s = time.monotonic() + timeout_s
        try:
            self._jobs.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline_s - time.monotonic()))

    def _put(self, job: Callable[[], None]) -> bool:
        try:
            self._jobs.put_nowait(job)
            return True
        except queue.Full:
            self._problems.warn(
                "full", "TensorBoard events are written too slowly (%s); some are left out.", self._file.path
            )
            return False

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                self._file.close()
                return
            try:
                job()
                # One system call writes all events that waited.
                if self._jobs.empty():
                    self._file.flush()
            except Exception as error:  # an error in drawing an image or a histogram must not end the thread
                self._problems.warn(repr(error), "A TensorBoard event was left out: %r", error)

    def _append(self, event: Event) -> None:
        data = event.SerializeToString()
        header = struct.pack("<Q", len(data))
        checks = struct.pack("<I", masked_crc32c(header)), struct.pack("<I", masked_crc32c(data))
        self._file.append(b"".join((header, checks[0], data, checks[1])))
