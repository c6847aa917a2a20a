"""Finds files of runs that are no longer needed, and deletes them.

A run that is in use, that can be continued, or whose trial a study trains now is left alone. Of a finished run the best
and the last checkpoint stay. Deleting takes the lock of the run directory first.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Collection, Dict, List, Mapping, Optional, Sequence

from mxtrain.checkpoint.folder import CHECKPOINTS, TEMPORARY, Place, discard, read_named, scan
from mxtrain.checkpoint.run_directory import is_locked, lock_run_directory, refuse_links
from mxtrain.checkpoint.store import choose_kept
from mxtrain.errors import EXIT_FINISHED, CheckpointError, RunDirectoryError
from mxtrain.files.durable import fsync_directory
from mxtrain.files.run_files import OWN_FILES, ROWS_FILE
from mxtrain.runs.registry import KILLED, NO_STATUS, STARTING, ListedRun, size_of
from mxtrain.runs.status import DAMAGED, PRUNED, RunStatus, read_status

LEFTOVERS, CHECKPOINT_COPIES, EMPTY, PREVIOUS, WHOLE = "leftovers", "checkpoints", "empty", "previous", "runs"
KINDS: Dict[str, str] = {
    LEFTOVERS: "unfinished checkpoints of killed runs",
    CHECKPOINT_COPIES: "checkpoints of finished runs besides the best and the last",
    EMPTY: "runs that ended without a checkpoint or a validation",
    PREVIOUS: "files that checkpoint.resume=never has set aside in previous/",
    WHOLE: "whole run directories",
}
"""Kinds of files that `clean` deletes."""
BY_DEFAULT = (LEFTOVERS, CHECKPOINT_COPIES, EMPTY)
_STUDY, _CLAIMS = "study.json", ".claims"
_OF_RUNS = (*OWN_FILES, ROWS_FILE, "metrics.csv", "events.out.tfevents.*", ".tmp-*", "slim", "export", "profile*")


@dataclass(frozen=True)
class Removable:
    """A file or folder that can be deleted."""

    kind: str
    run: str
    path: str
    size: int
    reason: str


@dataclass(frozen=True)
class Kept:
    """A run that is left alone although its files were asked for."""

    run: str
    reason: str


@dataclass(frozen=True)
class CleanupPlan:
    """Files to delete, and runs that are left alone."""

    removable: Sequence[Removable]
    kept: Sequence[Kept]
    seen: Mapping[str, Optional[RunStatus]]
    """status.json of each run when the plan was made; None if there was none."""

    @property
    def size(self) -> int:
        """Bytes of all that can go."""
        return sum(one.size for one in self.removable)


def is_resumable(run: ListedRun) -> bool:
    """Returns True if the command that started a run would continue it from a checkpoint."""
    if run.status.exit_code == EXIT_FINISHED and run.state not in ("running", KILLED):
        return False  # a killed run has no exit code; a file that says otherwise is not believed
    return bool(_places(run.path)) or run.state in (KILLED, STARTING, DAMAGED)


def plan_cleanup(runs: Sequence[ListedRun], kinds: Sequence[str], unfinished: bool = False) -> CleanupPlan:
    """Finds what can go. Deletes nothing.

    Args:
        runs: the runs to look at.
        kinds: of `KINDS`.
        unfinished: True to offer whole runs that could be continued, too.
    """
    removable: List[Removable] = []
    kept: List[Kept] = []
    for run in runs:
        reason = _reason_to_keep(run)
        if reason:
            kept.append(Kept(run.path, reason))
            continue
        whole = _whole(run, kinds, unfinished)
        foreign = foreign_files(run.path) if whole is not None else []
        if foreign:
            kept.append(Kept(run.path, f"it holds files that are not a run's: {', '.join(foreign[:3])}"))
            continue
        if whole is not None:
            removable.append(whole)
            continue
        if WHOLE in kinds:
            kept.append(Kept(run.path, "it can be continued: unfinished=true deletes it, too"))
        removable += _parts_of(run, kinds)
    seen = {run.path: None if run.state == NO_STATUS else run.status for run in runs}
    return CleanupPlan(removable, kept, seen)


def _reason_to_keep(run: ListedRun) -> str:
    if run.state in ("running", STARTING) or is_locked(run.path):
        return "it is in use"
    if os.path.islink(os.path.join(run.path, CHECKPOINTS)):
        return f"its folder {CHECKPOINTS} is a link"
    if _study_is_running(os.path.dirname(os.path.abspath(run.path))):
        return "its study is being trained"
    return ""


def _study_is_running(folder: str) -> bool:
    """Returns True if a worker trains a trial of the study in this folder now."""
    if not os.path.isfile(os.path.join(folder, _STUDY)):
        return False
    try:
        claims = os.listdir(os.path.join(folder, _CLAIMS))
    except OSError:
        return False
    return any(is_locked(folder, os.path.join(_CLAIMS, name), may_be_empty=True) for name in claims[:100_000])


def _whole(run: ListedRun, kinds: Sequence[str], unfinished: bool) -> Optional[Removable]:
    """The run directory itself, if it can go."""
    if WHOLE in kinds and (unfinished or not is_resumable(run)):
        return Removable(WHOLE, run.path, run.path, run.size, f"{run.state}, as asked for")
    has_result = run.status.best is not None or run.status.exit_code == EXIT_FINISHED
    is_ended = run.state in ("failed", "interrupted", PRUNED)
    if EMPTY in kinds and is_ended and not has_result and not _has_content(run.path):
        cause = f": {run.status.cause}" if run.status.cause else ""
        return Removable(EMPTY, run.path, run.path, run.size, f"{run.state} at step {run.status.step}{cause}")
    return None


def _has_content(path: str) -> bool:
    """Returns True if a run directory holds something that its run may have been started for."""
    return bool(_places(path)) or any(os.path.lexists(os.path.join(path, name)) for name in ("previous", "averaged"))


def foreign_files(path: str) -> List[str]:
    """Names in a run directory that no run writes. `hydra.run.dir=.` makes a folder of somebody's work one."""
    try:
        names = os.listdir(path)
    except OSError:
        return []
    return sorted(name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in _OF_RUNS))


def _places(path: str) -> List[Place]:
    try:
        return scan(Path(path, CHECKPOINTS))
    except CheckpointError:
        return []


def _parts_of(run: ListedRun, kinds: Sequence[str]) -> List[Removable]:
    folder = os.path.join(run.path, CHECKPOINTS)
    found: List[Removable] = []
    if LEFTOVERS in kinds:
        found += [
            Removable(LEFTOVERS, run.path, path, size_of(path), "unfinished")
            for path in _children(folder) if os.path.basename(path).startswith(TEMPORARY)
        ]  # fmt: skip
    if CHECKPOINT_COPIES in kinds and run.status.exit_code == EXIT_FINISHED and run.state != KILLED:
        found += [
            Removable(CHECKPOINT_COPIES, run.path, str(place.path), size_of(str(place.path)), "neither best nor last")
            for place in _superfluous(run)
        ]  # fmt: skip
    previous = os.path.join(run.path, "previous")
    if PREVIOUS in kinds and os.path.isdir(previous) and not os.path.islink(previous):
        found.append(Removable(PREVIOUS, run.path, previous, size_of(previous), "set aside by checkpoint.resume=never"))
    return found


def _children(folder: str) -> List[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _superfluous(run: ListedRun) -> List[Place]:
    """Checkpoints besides the best and the last usable one. If one cannot be read, all stay: it may hide a damage."""
    places = _places(run.path)
    if len(places) < 2:
        return []
    try:
        checkpoints = [read_named(place.path, verify_arrays=False) for place in places]
    except CheckpointError:
        return []
    kept = choose_kept(checkpoints, keep_last=1, keep_top=1)
    kept |= {place.path for place in places if place.step == run.status.best_step}
    return [place for place in places if place.path not in kept and not place.path.is_symlink()]


def delete(plan: CleanupPlan) -> List[Kept]:
    """Deletes what a plan lists; returns what could not be deleted, with reasons.

    Each run is locked before and looked at again: one that was started since the plan was made is left alone.
    """
    by_run: Dict[str, List[Removable]] = {}
    for one in plan.removable:
        by_run.setdefault(one.run, []).append(one)
    failed: List[Kept] = []
    for run, parts in by_run.items():
        try:
            with lock_run_directory(run):
                if read_status(run) != plan.seen[run]:
                    failed.append(Kept(run, "it has changed"))
                    continue
                _require_whole(run, {part.path for part in parts if part.kind == CHECKPOINT_COPIES})
                for part in parts:
                    _delete(part)
        except (OSError, RunDirectoryError, CheckpointError) as error:
            failed.append(Kept(run, str(error)))
    return failed


def _require_whole(run: str, superfluous: Collection[str]) -> None:
    """Verifies every byte of the checkpoints that stay. If one is damaged, the others are still needed.

    Raises:
        CheckpointError: one is damaged.
    """
    for place in _places(run) if superfluous else ():
        if str(place.path) not in superfluous:
            read_named(place.path)


def _delete(part: Removable) -> None:
    path = Path(part.path)
    refuse_links(path.parent, (path.name,))
    if part.path == part.run:
        # The lock file goes last, so that no run can start here meanwhile.
        for name in sorted(os.listdir(path), key=lambda name: name == ".lock"):
            child = path / name
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink()
        path.rmdir()
    elif part.kind == CHECKPOINT_COPIES:
        discard(path)
    else:
        shutil.rmtree(path)
    if path.parent.is_dir():
        fsync_directory(path.parent)


def why_nothing(runs: Sequence[ListedRun]) -> str:
    """A sentence for a plan without anything: what the runs are."""
    resumable = sum(is_resumable(run) for run in runs)
    said = f"; {resumable:,} of them can be continued" if resumable else ""
    return f"nothing can go of {len(runs):,} runs{said}"
