"""Names the command that starts mxtrain here, so that printed commands can be pasted as they are."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys

from mxtrain.callback.protocol import CommandLine

STARTED_BY = "MXTRAIN_STARTED_BY"
"""Command line of scripts/train as typed; it runs Python from an environment that need not be active."""


def program() -> str:
    """Returns the command that starts mxtrain: the console script or `python -m mxtrain` if the environment is active
    (on PATH), otherwise scripts/train if that was called, otherwise Python by its path."""
    name = os.path.basename(sys.argv[0])
    if name == "mxtrain":
        return name if _is_on_path(name, os.path.dirname(os.path.abspath(sys.argv[0]))) else shlex.quote(sys.argv[0])
    script = os.environ.get(STARTED_BY)
    return shlex.quote(script) if script and not _is_active() else f"{python()} -m mxtrain"


def tensorboard() -> str:
    """Returns the command that starts TensorBoard here."""
    folder = os.path.dirname(os.path.abspath(sys.executable))
    script = os.environ.get(STARTED_BY)
    if _is_on_path("tensorboard", folder):
        return "tensorboard"
    return (
        shlex.quote(os.path.join(os.path.dirname(script), "tensorboard"))
        if script
        else f"{python()} -m tensorboard.main"
    )


def python() -> str:
    """Returns the command that starts this Python: its name if PATH finds it, otherwise its path."""
    if not sys.executable:  # in a program that embeds Python
        return "python"
    if _is_active():
        return shlex.quote(os.path.basename(sys.executable))
    relative = os.path.relpath(sys.executable)
    if relative.startswith(".."):
        return shlex.quote(sys.executable)
    return shlex.quote(relative if os.sep in relative else f"./{relative}")


def with_program_name(text: str) -> str:
    """Returns a text that names `python -m mxtrain`, with the script's name for it where that was called; else as it
    is."""
    if not os.environ.get(STARTED_BY) or _is_active():
        return text
    text = re.sub(r"\bpython -m mxtrain(?![.\w])", lambda match: program(), text)
    return re.sub(r"\bpython -m mxtrain(?=\.\w)", lambda match: f"{python()} -m mxtrain", text)


def command_line(**known: object) -> CommandLine:
    """Returns the command that started this process, with the known facts of the run."""
    return CommandLine(program=program(), tensorboard=tensorboard(), **known)  # type: ignore[arg-type]


def _is_active() -> bool:
    return _is_on_path(os.path.basename(sys.executable), os.path.dirname(os.path.abspath(sys.executable)))


def _is_on_path(name: str, folder: str) -> bool:
    """Returns True if a shell finds this program in this folder first."""
    path = shutil.which(name)
    # By real paths, since the folder of an environment may be a link.
    return path is not None and os.path.realpath(os.path.dirname(os.path.abspath(path))) == os.path.realpath(folder)
