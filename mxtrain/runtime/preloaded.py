"""A run in the fork of a process that has imported MXNet for it; see `mxtrain.cluster.fork_server`.

MXNet reads its variables when it is imported, so a run that needs other ones starts anew, as a process without fork.
"""

from __future__ import annotations

import os
import sys
from typing import Mapping, NamedTuple, NoReturn, Optional, Sequence


class _Fork(NamedTuple):
    """A fork whose run has not begun."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """Its variables, as a new process gets them."""
    needed: Mapping[str, str]
    """Its variables when the run begins, if MXNet was imported with the same."""


_fork: Optional[_Fork] = None
_is_server = False


def begin_server() -> None:
    """Makes this process a fork server, which starts no threads."""
    global _is_server
    _is_server = True


def serves_forks() -> bool:
    """Returns True in a fork server, and False in its forks."""
    return _is_server


def is_mxnet_loaded() -> bool:
    """Returns True if MXNet has read its variables. In the fork of a server it counts as not loaded until `begin`."""
    return "mxnet" in sys.modules and _fork is None


def enter(command: Sequence[str], environment: Mapping[str, str], set_by_imports: Mapping[str, str]) -> None:
    """Gives a fork the variables of its run.

    Args:
        command: starts the same run as a new process.
        environment: variables that a new process would get.
        set_by_imports: variables that libraries set, or change, in all processes that import them.
    """
    global _fork, _is_server
    _is_server = False
    with_server = dict(os.environ)
    own = {name: value for name, value in environment.items() if name not in with_server}
    os.environ.clear()
    os.environ.update({**environment, **set_by_imports})
    _fork = _Fork(command, environment, {**with_server, **own})


def require_environment() -> None:
    """Starts the run anew if its description needs other variables than those with which MXNet was imported.

    Does nothing in a process that is no fork.
    """
    if _fork is not None and dict(os.environ) != dict(_fork.needed):
        _start_anew(_fork)


def begin() -> None:
    """Must be called before MXNet is used: from here on its variables are final."""
    global _fork
    require_environment()
    _fork = None


def _start_anew(fork: _Fork) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(fork.command[0], list(fork.command), dict(fork.environment))  # the run keeps its process id
