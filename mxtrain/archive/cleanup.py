"""Finds files of runs that are no longer needed, and deletes them.

A run is kept if it is in use, can be continued, or belongs to a study that is being trained. The best and the last
checkpoint of a finished run are kept. Deleting takes the lock of the run directory first.

Only files that mxtrain wrote are deleted: the plan lists each of them, found by path patterns (`written_files`). A part
of a run that contains anything else, such as links, pipes and mounted folders, is kept. Because other users may replace
a folder by a link meanwhile, files are removed through descriptors: the run directory is opened without following a
link and compared with the plan, and each subfolder is opened relative to its parent.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.archive.registry import KILLED, NO_STATUS, STARTING, ListedRun, size_of
from mxtrain.archive.run_files import PRUNED
from mxtrain.archive.status import DAMAGED, RunStatus, read_status
from mxtrain.archive.written_files import foreign_files
from mxtrain.checkpoint.folder import CHECKPOINTS, TEMPORARY, CheckpointFolder, read_named, scan
from mxtrain.checkpoint.run_directory import LOCK_FILE, is_locked, lock_run_directory
from mxtrain.checkpoint.store import choose_kept
from mxtrain.errors import EXIT_FINISHED, CheckpointError, RunDirectoryError
from mxtrain.files.removal import list_files, open_folder, path_of, remove_empty_folder, remove_files

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


@dataclass(frozen=True)
class Removable:
    """A folder that can be deleted, with the files in it."""

    kind: str
    run: str
    path: str
    size: int
    reason: str
    files: Sequence[str] = ()
    """Paths of files in the run directory that mxtrain wrote."""


@dataclass(frozen=True)
class Kept:
    """A run that is not cleaned although it was selected."""

    run: str
    reason: str


@dataclass(frozen=True)
class CleanupPlan:
    """Files to delete, and runs that are not cleaned."""

    removable: Sequence[Removable]
    kept: Sequence[Kept]
    seen: Mapping[str, Optional[RunStatus]]
    """status.json of each run when the plan was made; None if there was none."""
    folders: Mapping[str, os.stat_result]
    """Run directories, to notice one that was exchanged since."""

    @property
    def size(self) -> int:
        """Returns the total size of the files to delete, in bytes."""
        return sum(item.size for item in self.removable)


def is_resumable(run: ListedRun) -> bool:
    """Returns True if the command that started a run would continue it from a checkpoint."""
    if run.status.exit_code == EXIT_FINISHED and run.state not in ("running", KILLED):
        return False  # a killed run has no exit code, so an exit code in its file is ignored
    return bool(_checkpoint_entries(run.path)) or run.state in (KILLED, STARTING, DAMAGED)


def plan_cleanup(runs: Sequence[ListedRun], kinds: Sequence[str], unfinished: bool = False) -> CleanupPlan:
    """Finds files to delete. Deletes nothing.

    Args:
        runs: runs to examine.
        kinds: kinds of files, from `KINDS`.
        unfinished: True to include whole runs that could be continued.
    """
    removable: List[Removable] = []
    kept: List[Kept] = []
    folders: Dict[str, os.stat_result] = {}
    for run in runs:
        reason = _reason_to_keep(run)
        if reason:
            kept.append(Kept(run.path, reason))
            continue
        try:
            with open_folder(run.path) as folder:
                folders[run.path] = os.fstat(folder)
                files, others = list_files(folder)
                content = _Content(files, foreign_files(path_of(folder), files, others))
        except OSError:
            kept.append(Kept(run.path, "it is a link, or cannot be read"))
            continue
        _plan_run(run, kinds, unfinished, content, removable, kept)
    seen = {run.path: None if run.state == NO_STATUS else run.status for run in runs}
    return CleanupPlan(removable, kept, seen, folders)


@dataclass(frozen=True)
class _Content:
    files: Sequence[str]
    foreign: Sequence[str]

    def below(self, folder: str) -> Tuple[List[str], List[str]]:
        """Returns the files in a folder of the run directory, and the files among them that mxtrain did not write."""
        return (
            [path for path in self.files if path.startswith(folder)],
            [path for path in self.foreign if path.startswith(folder)],
        )


def _plan_run(
    run: ListedRun,
    kinds: Sequence[str],
    unfinished: bool,
    content: _Content,
    removable: List[Removable],
    kept: List[Kept],
) -> None:
    run_directory = _removable_run(run, kinds, unfinished)
    if run_directory is None and WHOLE in kinds:
        kept.append(Kept(run.path, "it can be continued: unfinished=true deletes it, too"))
    for part in [run_directory] if run_directory is not None else _parts_of(run, kinds):
        relative = os.path.relpath(part.path, run.path)
        files, foreign = content.below("" if part is run_directory else f"{relative}/")
        # `hydra.run.dir=.` makes a folder of somebody's work a run directory.
        if foreign:
            kept.append(Kept(run.path, f"it holds files that are not a run's: {', '.join(foreign[:3])}"))
        else:
            removable.append(replace(part, files=files))


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
    # All trials of a study are kept while one is trained: members of a population take over each other's checkpoints.
    return any(is_locked(folder, os.path.join(_CLAIMS, name), may_be_empty=True) for name in claims[:100_000])


def _removable_run(run: ListedRun, kinds: Sequence[str], unfinished: bool) -> Optional[Removable]:
    """Returns the run directory as a removable item; None if it must be kept."""
    if WHOLE in kinds and (unfinished or not is_resumable(run)):
        return Removable(WHOLE, run.path, run.path, run.size, f"{run.state}, as asked for")
    has_result = run.status.best is not None or run.status.exit_code == EXIT_FINISHED
    is_ended = run.state in ("failed", "interrupted", PRUNED)
    if EMPTY in kinds and is_ended and not has_result and not _has_content(run.path):
        cause = f": {run.status.cause}" if run.status.cause else ""
        return Removable(EMPTY, run.path, run.path, run.size, f"{run.state} at step {run.status.step}{cause}")
    return None


def _has_content(path: str) -> bool:
    """Returns True if a run directory holds checkpoints, averages or results of earlier runs."""
    if _checkpoint_entries(path):
        return True
    return any(os.path.lexists(os.path.join(path, name)) for name in ("previous", "averaged"))


def _checkpoint_entries(path: str) -> List[CheckpointFolder]:
    try:
        return scan(Path(path, CHECKPOINTS))
    except CheckpointError:
        return []


def _parts_of(run: ListedRun, kinds: Sequence[str]) -> List[Removable]:
    folder = os.path.join(run.path, CHECKPOINTS)
    parts: List[Removable] = []
    if LEFTOVERS in kinds:
        parts += [
            Removable(LEFTOVERS, run.path, path, size_of(path), "unfinished")
            for path in _children(folder)
            if os.path.basename(path).startswith(TEMPORARY)
        ]
    if CHECKPOINT_COPIES in kinds and run.status.exit_code == EXIT_FINISHED and run.state != KILLED:
        parts += [
            Removable(CHECKPOINT_COPIES, run.path, str(entry.path), size_of(str(entry.path)), "neither best nor last")
            for entry in _superfluous(run)
        ]
    previous = os.path.join(run.path, "previous")
    if PREVIOUS in kinds and os.path.isdir(previous) and not os.path.islink(previous):
        parts.append(Removable(PREVIOUS, run.path, previous, size_of(previous), "set aside by checkpoint.resume=never"))
    return parts


def _children(folder: str) -> List[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _superfluous(run: ListedRun) -> List[CheckpointFolder]:
    """Returns all checkpoints but the best and the last; empty if one cannot be read, as it may be the best."""
    entries = _checkpoint_entries(run.path)
    if len(entries) < 2:
        return []
    try:
        # Arrays are verified in `delete`, for the checkpoints that stay: reading all of them here may take minutes.
        checkpoints = [read_named(entry.path, verify_arrays=False) for entry in entries]
    except CheckpointError:
        return []
    kept = choose_kept(checkpoints, keep_last=1, keep_top=1)
    # Checkpoints are ranked by the metric in them; if status.json names another step, both stay.
    kept |= {entry.path for entry in entries if entry.step == run.status.best_step}
    return [entry for entry in entries if entry.path not in kept and not entry.path.is_symlink()]


def delete(plan: CleanupPlan) -> List[Kept]:
    """Deletes the files of a plan; returns the runs that could not be cleaned, with reasons.

    Each run is locked and checked again first: a run that has changed since the plan was made is not cleaned.
    """
    by_run: Dict[str, List[Removable]] = {}
    for item in plan.removable:
        by_run.setdefault(item.run, []).append(item)
    failed: List[Kept] = []
    for run, parts in by_run.items():
        try:
            with open_folder(run) as folder:
                _delete_parts(run, folder, parts, plan)
        except (OSError, RunDirectoryError, CheckpointError) as error:
            # Users know the run's path, not the descriptor through which it was opened.
            failed.append(Kept(run, re.sub(r"/proc/self/fd/\d+", run, str(error))))
    return failed


def _delete_parts(run: str, folder: int, parts: Sequence[Removable], plan: CleanupPlan) -> None:
    """Deletes parts of a run through the descriptor `folder` of its directory, whatever its path now leads to.

    Raises:
        OSError, RunDirectoryError, CheckpointError: something cannot be deleted, or has changed since.
    """
    # In a shared folder such as /tmp, another user can replace the run by a link between plan and deletion.
    if not os.path.samestat(os.fstat(folder), plan.folders[run]):
        raise OSError("it was exchanged meanwhile")
    path = path_of(folder)
    with lock_run_directory(path, name=run):
        if read_status(path) != plan.seen[run]:
            raise OSError("it has changed")
        _require_intact(path, {os.path.basename(part.path) for part in parts if part.kind == CHECKPOINT_COPIES})
        for part in parts:
            if part.kind == CHECKPOINT_COPIES:
                _discard(folder, part)
            else:
                # The lock file goes last, so that no run can start here meanwhile.
                last = [LOCK_FILE] if part.path == run else []
                remove_files(folder, [*(file for file in part.files if file not in last), *last])
        if any(part.path == run for part in parts):
            remove_empty_folder(run, folder)
        else:
            os.fsync(folder)


def _discard(folder: int, part: Removable) -> None:
    """Removes a checkpoint. It is renamed first, so that a partly removed one never has its name."""
    name = os.path.basename(part.path)
    hidden = f"{TEMPORARY}discarded-{name}-{os.getpid()}"
    with open_folder(CHECKPOINTS, folder) as checkpoints:
        os.rename(name, hidden, src_dir_fd=checkpoints, dst_dir_fd=checkpoints)
        remove_files(checkpoints, [f"{hidden}/{os.path.basename(file)}" for file in part.files])
        os.fsync(checkpoints)


def _require_intact(run: str, superfluous: Collection[str]) -> None:
    """Verifies every byte of the checkpoints that are kept. If one is damaged, the others are still needed.

    Raises:
        CheckpointError: a checkpoint is damaged.
    """
    for entry in _checkpoint_entries(run) if superfluous else ():
        if entry.path.name not in superfluous:
            read_named(entry.path)


def why_nothing(runs: Sequence[ListedRun]) -> str:
    """Returns the message for an empty plan."""
    resumable = sum(is_resumable(run) for run in runs)
    suffix = f"; {resumable:,} of them can be continued" if resumable else ""
    return f"nothing can go of {len(runs):,} runs{suffix}"
