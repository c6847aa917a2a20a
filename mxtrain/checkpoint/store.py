"""Saves the checkpoints of a run in a background thread, keeps the last and the best ones, and finds them again.

No index file lists the checkpoints: every search reads the directory, so a killed run leaves nothing inconsistent.

Reasons: docs/decisions/0025-unusable-checkpoints.md.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Deque, Dict, List, Optional, Sequence, Set

from mxtrain.checkpoint.contents import MANIFEST, Checkpoint, Snapshot, read_checkpoint, write_contents
from mxtrain.checkpoint.folder import (
    CHECKPOINTS,
    NAME,
    TEMPORARY,
    available,
    can_open_files,
    discard,
    read_named,
    remove_leftovers,
    scan,
)
from mxtrain.checkpoint.ranking import rank
from mxtrain.checkpoint.run_state import validation_loss
from mxtrain.errors import CheckpointError, NoCheckpoint, UnreadableCheckpoint, nearest
from mxtrain.files.durable import PathLike, fsync_directory

if TYPE_CHECKING:
    from mxtrain.checkpoint.run_directory import RunDirectoryLock
    from mxtrain.checkpoint.upload import CheckpointUpload

__all__ = [
    "CHECKPOINTS",
    "Checkpoint",
    "CheckpointStore",
    "SaveOutcome",
    "Snapshot",
    "choose_kept",
    "open_checkpoint",
]


@dataclass(frozen=True)
class SaveOutcome:
    """The result of a save in the background."""

    step: int
    path: Optional[Path]
    """Path of the checkpoint; None if it was not written."""
    error: Optional[str]
    """Reason of a failure, as part of a sentence; with a `path`, the failure came after writing it."""
    num_bytes: int
    wall_s: float


class CheckpointStore:
    """Saves, finds and deletes the checkpoints in one directory. Only the holder of the run's lock may write.

    Nothing is written before the first `save`. Call all methods from the same thread.

    Args:
        directory: the folder of the checkpoints, e.g. `<run directory>/checkpoints`.
        keep_last: number of the newest checkpoints to keep, at least 1.
        keep_top: number of checkpoints with the best metric to keep in addition.
        lock: the lock of the run directory; with it, unfinished files of dead processes are removed at once.
        report: called with a sentence for each checkpoint that cannot be used; by default these are kept until
            `take_ownership` passes a function.
        upload: uploads what the directory holds after each save; None = it stays on this machine.

    Attributes:
        unusable: path -> error of each checkpoint that `latest` or `best` could not use.
    """

    def __init__(
        self,
        directory: PathLike,
        *,
        keep_last: int,
        keep_top: int,
        lock: Optional[RunDirectoryLock] = None,
        report: Optional[Callable[[str], object]] = None,
        upload: Optional[CheckpointUpload] = None,
    ) -> None:
        assert keep_last >= 1 and keep_top >= 0
        self.directory = Path(directory)
        self.keep_last = keep_last
        self.keep_top = keep_top
        self._upload = upload
        self._unreported: List[str] = []
        self._report = report or self._unreported.append
        self.unusable: Dict[Path, CheckpointError] = {}
        self._outcomes: Deque[SaveOutcome] = deque()
        self._writer: Optional[threading.Thread] = None
        self._lock: Optional[RunDirectoryLock] = None
        if lock is not None:
            self.take_ownership(lock)

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_ownership(
        self, lock: Optional[RunDirectoryLock], report: Optional[Callable[[str], object]] = None
    ) -> None:
        """Makes this process the writer of the directory, and removes unfinished files of dead processes.

        Args:
            lock: lock of the run directory; None if it is not locked, in which case nothing is removed.
            report: see the constructor; called at once with what was kept so far.
        """
        if lock is not None:
            assert lock.held, "the run directory must be locked before its checkpoints are written"
            remove_leftovers(self.directory)
        self._lock = lock
        if report is not None:
            self._report = report
            for sentence in self._unreported:
                report(sentence)

    def save(self, snapshot: Snapshot) -> None:
        """Starts to write a checkpoint in the background. `poll` returns the outcome.

        Waits for the previous save, and, if the snapshot holds live arrays of the run, until they have been read. It
        does not wait for the disk.
        """
        self._join()
        has_read = threading.Event()
        # Not a daemon: an interpreter that ends normally finishes the save first.
        self._writer = threading.Thread(target=self._write, args=(snapshot, has_read), name="mxtrain-checkpoint")
        self._writer.start()
        # Training goes on once the arrays are read and handed to the kernel; the disk is not waited for.
        if snapshot.is_live:
            has_read.wait()

    def poll(self) -> Optional[SaveOutcome]:
        """Returns the oldest outcome that was not returned yet, or None, without waiting.

        A later outcome replaces a success that was not polled. Failures are always kept.
        """
        return self._outcomes.popleft() if self._outcomes else None

    def wait(self) -> Optional[SaveOutcome]:
        """Waits for the save in flight, then returns what `poll` returns."""
        self._join()
        return self.poll()

    def close(self, seconds_left: Callable[[], float] = lambda: math.inf) -> None:
        """Waits for the save in flight and for its upload. Outcomes can still be polled.

        Args:
            seconds_left: returns the seconds for which it may still wait for the upload.
        """
        self._join()
        if self._upload is not None:
            self._upload.wait(seconds_left)

    def latest(self) -> Optional[Checkpoint]:
        """Returns the newest checkpoint that passes verification; unusable ones are reported and skipped.

        Raises:
            UnreadableCheckpoint: the folder cannot be read.
        """
        self._join()
        paths = [entry.path for entry in reversed(scan(self.directory))]
        return self._first_usable(paths, "The one before it is used.")

    def best(self) -> Optional[Checkpoint]:
        """Returns the usable checkpoint with the best metric, in the order of `ranking.rank`; None if there is none.

        Raises:
            UnreadableCheckpoint: the folder cannot be read.
        """
        self._join()
        unusable: Dict[Path, CheckpointError] = {}
        ranked = _rank(self._summaries(unusable), keep_top=None)
        usable = self._first_usable([checkpoint.path for checkpoint in ranked], "The next best is used.")
        for path, error in unusable.items():
            if path not in self.unusable:
                self._report(f"{error} Whether it was the best is not known.")
        self.unusable.update(unusable)
        return usable

    def require_usable(self) -> None:
        """Prevents a fresh start over checkpoints that are there but could not be read by `latest`.

        Raises:
            CheckpointError: a checkpoint is unusable; the message names each and the reason.
        """
        if self.unusable:
            reasons = "\n".join(f"  {error}" for _, error in sorted(self.unusable.items()))
            raise CheckpointError(
                f"No checkpoint in {self.directory} can be used:\n{reasons}\nMake them readable, or start over with "
                "checkpoint.resume=never (which keeps the earlier files under previous/)."
            )

    def require_in_place(self) -> None:
        """Checks that the run directory is still the locked one.

        Raises:
            RunDirectoryLost: the run directory was removed or replaced.
        """
        if self._lock is not None:
            self._lock.require_in_place()

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _first_usable(self, paths: Sequence[Path], otherwise: str) -> Optional[Checkpoint]:
        checkpoint: Optional[Checkpoint] = None
        problems: List[CheckpointError] = []
        for path in paths:
            try:
                checkpoint = read_named(path)
                self.unusable.pop(path, None)
                break
            except CheckpointError as error:
                problems.append(error)
                self.unusable[path] = error
        for problem in problems:
            self._report(f"{problem} {otherwise if checkpoint else 'No other one can be used.'}")
        return checkpoint

    def _summaries(self, unusable: Dict[Path, CheckpointError]) -> List[Checkpoint]:
        """Returns the checkpoints in the directory, oldest first, without known unusable ones. Reads no arrays.

        Args:
            unusable: receives path -> error of each further checkpoint that could not be read.
        """
        summaries = []
        for entry in scan(self.directory):
            if entry.path not in self.unusable:
                try:
                    summaries.append(read_named(entry.path, verify_arrays=False))
                except CheckpointError as error:
                    unusable[entry.path] = error
        return summaries

    # In the background.

    def _write(self, snapshot: Snapshot, has_read: threading.Event) -> None:
        started = time.monotonic()
        temporary = self.directory / f"{TEMPORARY}step-{snapshot.step:08d}-{os.getpid()}"
        path: Optional[Path] = None
        error: Optional[str] = None
        num_bytes = 0
        try:
            self._make_directory()
            shutil.rmtree(temporary, ignore_errors=True)  # a dead process may have had the same id
            num_bytes = write_contents(snapshot, temporary, has_read.set)
            path = self._publish(temporary, snapshot.step)
            # The rename must be on the disk before older checkpoints are deleted, or a power cut could lose both.
            fsync_directory(self.directory)
            self._retire(path)
            if self._upload is not None:
                self._upload.update(self.directory)
        except Exception as problem:  # a failed save must not end training; the outcome reports it
            shutil.rmtree(temporary, ignore_errors=True)
            error = _explain(problem, self.directory)
        finally:
            has_read.set()  # `save` waits for it, also if writing failed before the arrays were read
        outcome = SaveOutcome(snapshot.step, path, error, num_bytes, time.monotonic() - started)
        while self._outcomes and self._outcomes[0].error is None:
            self._outcomes.popleft()
        self._outcomes.append(outcome)

    def _make_directory(self) -> None:
        self.require_in_place()  # a removed run directory is not recreated: it would lack the run's other files
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True, exist_ok=True)
            fsync_directory(self.directory.parent)

    def _publish(self, temporary: Path, step: int) -> Path:
        """Renames a written checkpoint to its final name and returns the path.

        If an intact checkpoint with the same content exists, that one is kept instead. A different or damaged one of
        the same step is kept beside the new one until `_retire`: the new one gets a copy number.
        """
        copies = [entry for entry in scan(self.directory) if entry.step == step]
        if not copies:
            target = self.directory / f"step-{step:08d}"
        else:
            # A step that is saved again with the same content needs no second copy.
            if _is_same_and_intact(copies[-1].path, temporary):
                shutil.rmtree(temporary)
                return copies[-1].path
            target = self.directory / f"step-{step:08d}-{copies[-1].copy + 1}"
        os.rename(temporary, target)
        return target

    def _retire(self, saved: Path) -> None:
        """Deletes checkpoints that need not be kept.

        A damaged checkpoint is deleted only when there is a newer copy of its step. One that could not be read, for
        example because of its permissions, is never deleted, since it may be intact.
        """
        unusable = dict(self.unusable)
        summaries = self._summaries(unusable)
        kept = choose_kept(summaries, keep_last=self.keep_last, keep_top=self.keep_top)
        removable = {summary.path for summary in summaries} - kept
        entries = scan(self.directory)
        step = next(entry.step for entry in entries if entry.path == saved)
        removable |= {entry.path for entry in entries if entry.step == step}  # copies that `saved` replaces
        for entry in entries:
            may_be_whole = isinstance(unusable.get(entry.path), UnreadableCheckpoint)
            if entry.path in removable and entry.path != saved and not may_be_whole and can_open_files(entry.path):
                discard(entry.path)
                self.unusable.pop(entry.path, None)


def choose_kept(checkpoints: Sequence[Checkpoint], *, keep_last: int, keep_top: int) -> Set[Path]:
    """Returns the checkpoints to keep: the newest copy of each of the last steps, and the best by metric.

    Args:
        checkpoints: all checkpoints, oldest first.
        keep_last: number of the newest steps to keep.
        keep_top: number of best checkpoints to keep in addition, in the order of `ranking.rank`.
    """
    newest_copy = {checkpoint.step: checkpoint for checkpoint in checkpoints}
    steps = sorted(newest_copy)
    kept = {newest_copy[step].path for step in steps[-keep_last:]}
    return kept | {checkpoint.path for checkpoint in _rank(list(newest_copy.values()), keep_top=keep_top)}


def holds_checkpoint(path: PathLike) -> bool:
    """Returns True if `open_checkpoint` finds a checkpoint at a folder, which may be damaged; none is opened.

    Raises:
        UnreadableCheckpoint: the folder cannot be read.
    """
    return _is_checkpoint(Path(path)) or bool(scan(_folder_of(Path(path))))


def _is_checkpoint(path: Path) -> bool:
    return bool(NAME.match(path.name)) or os.path.exists(path / MANIFEST)


def _folder_of(run: Path) -> Path:
    return run / CHECKPOINTS if os.path.isdir(run / CHECKPOINTS) else run


def open_checkpoint(
    path: PathLike, which: str = "best", report: Optional[Callable[[str], object]] = None
) -> Checkpoint:
    """Opens a checkpoint for reading and verifies every byte. Needs no lock and changes nothing.

    Args:
        path: a checkpoint directory, a run directory, or the `checkpoints` folder of a run.
        which: for a run, "best" by metric (the last one if no metric was measured) or "last".
        report: called with a sentence for each checkpoint that was skipped in favour of the next best.

    Raises:
        CheckpointError: there is no checkpoint at `path`, none can be used, or with `which="last"` the last one cannot
            be used. The message names the checkpoints that there are.
    """
    assert which in ("best", "last")
    path = Path(path)
    if not _is_directory(path):
        hint = f" Give its folder, {path.parent}, instead." if path.is_file() else _nearest_folder(path)
        raise NoCheckpoint(f"There is no checkpoint and no run directory at {path}.{hint}{available(path.parent)}")
    if _is_checkpoint(path):
        return _read_requested(path, read_checkpoint)
    folder = _folder_of(path)
    entries = scan(folder)
    if not entries:
        raise NoCheckpoint(f"{path} holds no checkpoint.{available(path.parent)}")
    if which == "last":
        return _read_requested(entries[-1].path, read_named)
    problems: List[str] = []
    store = CheckpointStore(folder, keep_last=1, keep_top=0, report=problems.append)
    checkpoint = store.best() or store.latest()
    if checkpoint is None:
        reasons = [f"  {error}" for _, error in sorted(store.unusable.items())]
        raise CheckpointError("\n".join([f"No checkpoint in {folder} can be used:", *reasons]))
    for problem in problems if report is not None else ():
        assert report is not None
        report(f"{problem} That is the one of step {checkpoint.step}.")
    return checkpoint


def _nearest_folder(path: Path) -> str:
    """Returns ` Did you mean 'x'?` with a folder beside `path`, or a run in `outputs` of a similar name."""
    folders: Dict[str, Path] = {}
    for parent in (Path("outputs"), path.parent):
        with suppress(OSError):
            names = [entry.name for entry in os.scandir(parent) if entry.is_dir() and not entry.name.startswith(".")]
            folders.update({name: parent / name for name in names})
    found = nearest(path.name, folders)
    return f" Did you mean '{folders[found[0]]}'?" if found else ""


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UnreadableCheckpoint(f"{path} cannot be read: {error.strerror}.") from error


def _read_requested(path: Path, read: Callable[[Path], Checkpoint]) -> Checkpoint:
    """Reads the requested checkpoint. The message of an error also names the other checkpoints of the folder."""
    try:
        return read(path)
    except CheckpointError as error:
        raise type(error)(f"{error}{available(path.parent, but=path)}") from error


def _rank(checkpoints: Sequence[Checkpoint], keep_top: Optional[int]) -> List[Checkpoint]:
    """Sorts checkpoints, best first. Only those with the same monitored metric as the newest one are comparable."""
    measured = [checkpoint for checkpoint in checkpoints if checkpoint.metric is not None]
    if not measured:
        return []
    # A resumed run may monitor another metric than before; accuracies and losses do not compare.
    newest = max(measured, key=lambda checkpoint: checkpoint.step)
    same = [c for c in measured if (c.monitor, c.direction) == (newest.monitor, newest.direction)]
    return sorted(same, key=lambda c: rank(c.metric or 0.0, validation_loss(c), c.step, c.direction))[:keep_top]


def _is_same_and_intact(existing: Path, written: Path) -> bool:
    try:
        return read_checkpoint(existing).files == read_checkpoint(written, verify_arrays=False).files
    except CheckpointError:
        return False


def _explain(problem: Exception, directory: Path) -> str:
    if isinstance(problem, OSError):
        return f"{problem.strerror or problem} ({problem.filename or directory})"
    if isinstance(problem, CheckpointError):
        return str(problem).rstrip(".")
    return f"{type(problem).__name__}: {problem}"
