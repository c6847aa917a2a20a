"""Trains a single run, in one process or in several, and locks its run directory for this process."""

from __future__ import annotations

import functools
import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional, Sequence

from mxtrain.callback.protocol import CommandLine, Result
from mxtrain.checkpoint import lock_run_directory
from mxtrain.cluster.launch import sweep
from mxtrain.cluster.launch.group import find_role, is_further_node, overrides_of_run_dir, supervise_in
from mxtrain.cluster.launch.hydra_run import run_composed
from mxtrain.cluster.launch.job import command_of, train_as_group, train_safely
from mxtrain.cluster.launch.outcome import Outcome, exit_code_of, print_cause, print_outcome
from mxtrain.cluster.launch.run_dir_rollback import RunDirRollback
from mxtrain.cluster.launch.store_server import serve
from mxtrain.cluster.member import Member
from mxtrain.composing.composer import Composed
from mxtrain.composing.environment import set_environment
from mxtrain.config.groups import Description
from mxtrain.errors import EXIT_BAD_INPUT, MxtrainError
from mxtrain.terminal.program import command_line
from mxtrain.training.prepared_run import PreparedRun
from mxtrain.training.resume import ResumePoint, find_resume_point, move_to_previous


def run_once(composed: Composed, description: Description, flags: Sequence[str]) -> int:
    """Trains as `train_once`, or as a server or further worker of several processes; returns the exit code."""
    member = find_role(description)
    if member is not None and member.role != "worker":
        return serve(member.role, lambda: description, description.cluster.start_timeout)
    if member is not None and member.world.rank > 0:
        return run_follower(composed, description)
    if is_further_node(description):
        run_dir = Path(os.path.abspath(composed.run_dir))
        arguments = ["train", *flags, *composed.overrides, *overrides_of_run_dir(run_dir)]
        return supervise_in(run_dir, description, arguments)
    return exit_code_of([_train(composed, description, flags, member)])


def train_once(composed: Composed, description: Description, flags: Sequence[str]) -> Outcome:
    """Trains in `hydra.run.dir`, as one process or as the supervisor of several.

    Raises:
        MxtrainError: nothing was started; the run directory is as it was.
    """
    return _train(composed, description, flags, find_role(description))


def prepare_run(composed: Composed, description: Description, flags: Sequence[str]) -> PreparedRun:
    """Returns a run that trains as `train_once`."""
    return PreparedRun(
        description,
        composed.run_dir,
        functools.partial(train_once, composed, description, flags),
        functools.partial(set_environment, description),
    )


def _train(composed: Composed, description: Description, flags: Sequence[str], member: Optional[Member]) -> Outcome:
    run_dir = composed.run_dir
    rollback = RunDirRollback(run_dir, str(composed.hydra.output_subdir))
    if member is None and description.kvstore.distributed:
        arguments = [*flags, *composed.overrides]
        result = train_as_group(description, run_dir, arguments)
        if result.exit_code == EXIT_BAD_INPUT:
            # Another worker may have refused first, and ended the one that writes there.
            rollback.put_back_settings()
        return Outcome.from_result(None, arguments, run_dir, result)
    command = sweep.with_exported_job(command_of(composed.hydra))
    output_dir = Path(os.path.abspath(run_dir))
    try:
        with claim(run_dir, description) as resume_point:
            result = run_composed(
                composed, run_dir, lambda _: train_safely(description, output_dir, command, resume_point)
            )
            outcome = show_end(result, output_dir, description, command)
    except MxtrainError:
        rollback.restore()
        raise
    if outcome.exit_code == EXIT_BAD_INPUT and outcome.step == 0:
        rollback.restore()
    return outcome


def show_end(result: Result, run_dir: Path, description: Description, command: CommandLine) -> Outcome:
    """Prints how a single run ended, unless a logger has shown it."""
    if result.state != "failed" and not any(logger.shows_end for logger in description.logger.values()):
        from mxtrain.terminal.console import open_console
        from mxtrain.terminal.report import print_end

        task = description.task
        console = open_console(sys.stdout)
        print_end(console, result, run_dir, description.config, command, task.predicts, task.prediction_format().inputs)
    outcome = Outcome.from_result(None, command.arguments, run_dir, result)
    print_outcome(outcome)
    return outcome


def run_follower(composed: Composed, description: Description) -> int:
    """Trains as one of the workers that write no run directory."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    result = train_safely(description, composed.run_dir, command_line(overrides=composed.overrides))
    if result.cause:
        print_cause(result.cause, result.exit_code)
    return result.exit_code


@contextmanager
def claim(run_dir: Path, description: Description) -> Iterator[ResumePoint]:
    """Locks the run directory for this process, and checks that the run in it may be continued.

    Raises:
        RunDirectoryError: another process trains there.
        CheckpointError: it holds a run of another description. Nothing was written.
    """
    with lock_run_directory(run_dir):
        resume_point = find_resume_point(run_dir, description.checkpoint, description.config)
        if description.checkpoint.resume == "never":
            previous_files = move_to_previous(run_dir, hydra=True)  # before Hydra writes there
            if previous_files is not None:
                print(f"checkpoint.resume=never: the earlier run's files are now in {previous_files}", flush=True)
        yield resume_point
