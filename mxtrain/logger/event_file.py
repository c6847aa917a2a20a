"""A TensorBoard event file, written by a thread of its own so that training never waits for drawing or for a disk.

tensorboardX supplies the messages and their checksums, but not the file: its writer names two files of one second alike
and so overwrites the first, and blocks the caller for ever once its thread has died of a full disk.
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

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from mxtrain.logger.files import AppendedFile

_LOG = logging.getLogger(__name__)

MAX_WAITING_JOBS = 1000


class EventFile:
    """One event file of a run directory; `add` hands work to the writing thread and returns at once."""

    def __init__(self, run_dir: Path, first_step: int) -> None:
        """Start a new file in `run_dir`.

        Args:
            run_dir: The folder that TensorBoard shows as a run.
            first_step: TensorBoard hides what older files of the folder hold from this step on.

        Raises:
            RunDirectoryError: The file cannot be opened.
        """
        now_ns = time.time_ns()
        # TensorBoard reads a folder's files in the order of their names: seconds first, then the rest of the time.
        name = f"events.out.tfevents.{now_ns // 10**9:010d}.{socket.gethostname()}.{now_ns % 10**9:09d}"
        self._file = AppendedFile(Path(run_dir) / name)
        self._jobs: queue.Queue[Optional[Callable[[], None]]] = queue.Queue(MAX_WAITING_JOBS)
        self._said: set[str] = set()
        self._append(Event(wall_time=now_ns / 1e9, file_version="brain.Event:2"))
        restart = SessionLog(status=SessionLog.START)
        self._append(Event(wall_time=now_ns / 1e9, step=first_step, session_log=restart))
        self._file.flush()
        self._thread = threading.Thread(target=self._run, name="mxtrain-tensorboard", daemon=True)
        self._thread.start()

    def add(self, make_summaries: Callable[[], Iterable[Summary]], step: int) -> None:
        """Have the thread call `make_summaries` and write what it yields as events of `step`."""
        wall_time = time.time()

        def write() -> None:
            for summary in make_summaries():
                self._append(Event(wall_time=wall_time, step=step, summary=summary))

        self._put(write)

    def add_graph(self, make_graph_def: Callable[[], bytes]) -> None:
        """Have the thread call `make_graph_def` and write the serialized GraphDef that it returns."""
        wall_time = time.time()
        self._put(lambda: self._append(Event(wall_time=wall_time, graph_def=make_graph_def())))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was added is on the disk, for at most `timeout_s` seconds; whether it is."""
        done = threading.Event()

        def sync() -> None:
            self._file.flush(sync=True)
            done.set()

        return self._put(sync) and done.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what waits, stop the thread and close the file; give up after `timeout_s` seconds."""
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
            self._say("full", "TensorBoard events are written too slowly (%s); some are left out.", self._file.path)
            return False

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                self._file.close()
                return
            try:
                job()
                if self._jobs.empty():
                    self._file.flush()
            except Exception as error:  # whatever an image or a histogram stumbles over must not end the thread
                self._say(repr(error), "A TensorBoard event was left out: %r", error)

    def _append(self, event: Event) -> None:
        data = event.SerializeToString()
        header = struct.pack("<Q", len(data))
        checks = struct.pack("<I", masked_crc32c(header)), struct.pack("<I", masked_crc32c(data))
        self._file.append(b"".join((header, checks[0], data, checks[1])))

    def _say(self, kind: str, message: str, *arguments: object) -> None:
        if kind not in self._said:
            self._said.add(kind)
            _LOG.warning(message, *arguments)
