"""Custom loops in several processes: the first process starts the user's script once more in each worker.

    python gan.py                       session("kvstore=dist_sync", "cluster.workers=2"): supervises, and then exits
      -> python -m mxtrain train ...    one for each worker, with MXTRAIN_SCRIPT: runs gan.py, whose session trains

The overrides of a worker's session are those of its command line, so that a restart continues as it does for `train`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from typing import TYPE_CHECKING, List, Optional, Sequence

from mxtrain.cluster.launch.run_dir_rollback import RunDirRollback
from mxtrain.errors import EXIT_BAD_INPUT, EXIT_CRASHED, EXIT_FINISHED, EXIT_SIGINT, EXIT_SIGTERM, ConfigError

if TYPE_CHECKING:
    from mxtrain.composing.composer import Composed
    from mxtrain.config.groups import Description

SCRIPT = "MXTRAIN_SCRIPT"
"""Environment variable with the script of a worker and its arguments, as a JSON list."""


class WorkerScript:
    """The script that this process runs as a worker.

    Args:
        overrides: overrides of the script's session.
    """

    def __init__(self, overrides: Sequence[str]):
        self._overrides: Optional[List[str]] = list(overrides)
        self.exit_code: Optional[int] = None
        """Exit code of the script's session; None until the session has ended."""

    def take_overrides(self) -> List[str]:
        """Returns the overrides of the workers, for the only session of the script.

        Raises:
            ConfigError: an earlier session of the script has taken them.
        """
        if self._overrides is None:
            raise ConfigError("session: with several workers a script has one session: the processes end with it.")
        overrides, self._overrides = self._overrides, None
        return overrides

    def leave_cluster(self) -> None:
        """Unsets the role of this process, so that the script can evaluate the run after its session."""
        from mxtrain.config.rules import ROLE_VARIABLES

        for name in ROLE_VARIABLES:
            os.environ.pop(name, None)


running: Optional[WorkerScript] = None
"""The script that `run_script` runs in this process; None in all other processes."""


def run_script(command: Sequence[str], overrides: Sequence[str]) -> int:
    """Runs a script as a worker, and returns the exit code.

    Args:
        command: path and arguments of the script.
        overrides: overrides of the script's session.
    """
    global running
    running = WorkerScript(overrides)
    sys.argv = list(command)
    # As Python does for a script; runpy.run_path does this for folders and archives only.
    sys.path.insert(0, os.path.dirname(command[0]))
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            return end.code if isinstance(end.code, int) else EXIT_CRASHED
    except BaseException:
        # If the session itself failed, its exit code counts instead of the error that followed.
        if running.exit_code in (None, EXIT_FINISHED):
            raise
        if running.exit_code not in (EXIT_SIGINT, EXIT_SIGTERM):
            traceback.print_exc()
    return EXIT_FINISHED if running.exit_code is None else running.exit_code


def main_script() -> List[str]:
    """Returns the script that this process runs, and its arguments.

    Raises:
        ConfigError: it runs none, as in a notebook.
    """
    main = vars(sys.modules["__main__"])
    if "__file__" not in main or main.get("__spec__") is not None:
        raise ConfigError(
            "session: several workers run the script that calls it, and this is none. Type kvstore=local, or put the "
            "loop into a file and start that: python FILE.py."
        )
    return [os.path.abspath(main["__file__"]), *sys.argv[1:]]


def run_in_workers(composed: Composed, description: Description, arguments: Sequence[str]) -> int:
    """Starts this process's script in each worker, watches them to the end, and returns the exit code.

    Args:
        composed: composition of the session.
        description: description of the session.
        arguments: flags and overrides from which a worker composes the description.

    Raises:
        ConfigError: this process runs no script, or the launcher cannot work; nothing was written.
    """
    from mxtrain.cluster.launch.job import train_as_group

    script = main_script()
    rollback = RunDirRollback(composed.run_dir, str(composed.hydra.output_subdir))
    # As JSON, because arguments may contain spaces and any other character.
    os.environ[SCRIPT] = json.dumps(script)
    try:
        result = train_as_group(description, composed.run_dir, arguments)
    finally:
        del os.environ[SCRIPT]
    if result.exit_code == EXIT_BAD_INPUT:
        rollback.put_back_settings()
    return result.exit_code
