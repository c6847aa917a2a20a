"""All exceptions that mxtrain raises on purpose, and the exit codes of the process.

The command line prints the message of a `MxtrainError` without a traceback. Each message is a sentence that users can
act on: what was given, what is allowed, what to type.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import shlex
import traceback
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterable, Iterator

EXIT_FINISHED = 0
EXIT_CRASHED = 1
EXIT_BAD_INPUT = 2
EXIT_NON_FINITE = 3
EXIT_BUDGET = 75
EXIT_SIGINT = 130
EXIT_SIGTERM = 143
AGREED_EXIT_CODES = (EXIT_FINISHED, EXIT_BUDGET, EXIT_SIGINT, EXIT_SIGTERM)
"""Exit codes with which all processes of a run end together."""

RUN_DIR_SETTING = "MXTRAIN_RUN_DIR_SETTING"
"""Environment variable that tells a child process how its caller names the run directory."""
_run_dir_setting: ContextVar[str] = ContextVar("run_dir_setting")


def run_dir_setting(setting: str = "hydra.run.dir") -> str:
    """Returns the setting or argument that chooses the run directory, for messages.

    It is the argument of `run_dir_set_by` within that context, else the variable that a parent process has set, else
    `setting`.
    """
    return _run_dir_setting.get(os.environ.get(RUN_DIR_SETTING, setting))


@contextmanager
def run_dir_set_by(name: str) -> Iterator[None]:
    """Makes messages name the run directory by an argument of the Python API, such as `dir`, within the context."""
    before = _run_dir_setting.set(name)
    try:
        yield
    finally:
        _run_dir_setting.reset(before)


_local_names: set[str] = set()


def show_addresses(prefix: str) -> None:
    """Makes messages name objects by their addresses; see `files.object_store.local_names`.

    Args:
        prefix: path of the folder of local names, with a slash at its end.
    """
    _local_names.add(prefix)


def with_addresses(text: str) -> str:
    """Returns a text with the addresses of objects in place of their local names."""
    for prefix in _local_names:
        if prefix in text:
            text = re.sub(re.escape(prefix) + r"[0-9a-f]{20}/([a-z0-9]+)/", r"\1://", text)
    return text


class MxtrainError(Exception):
    """Base class of all exceptions that are raised on purpose."""

    exit_code = EXIT_CRASHED

    def __str__(self) -> str:
        return with_addresses(super().__str__())


class ConfigError(MxtrainError):
    """The configuration is invalid; nothing was started."""

    exit_code = EXIT_BAD_INPUT


class DataError(MxtrainError):
    """Files of a dataset are missing or damaged, or have another format than the configuration says."""

    exit_code = EXIT_BAD_INPUT


class WrongData(DataError):
    """The files of a dataset contain a problem, possibly one of many: `data check` lists all of them."""


class WeightsError(MxtrainError):
    """A weights file cannot be read or does not fit the network."""

    exit_code = EXIT_BAD_INPUT


class DownloadError(MxtrainError):
    """A published file cannot be downloaded. The message is a sentence without its full stop."""

    exit_code = EXIT_BAD_INPUT


class CheckpointError(MxtrainError):
    """A checkpoint cannot be used: it is damaged, cannot be read, or does not fit the description."""

    exit_code = EXIT_BAD_INPUT


class NoCheckpoint(CheckpointError):
    """The given path contains no checkpoint."""


class DamagedCheckpoint(CheckpointError):
    """The files of a checkpoint are damaged. They can be removed without losing anything usable."""


class UnreadableCheckpoint(CheckpointError):
    """A checkpoint may be intact, but cannot be read now (permissions, disk errors). It is never removed."""


class LaterCheckpoint(UnreadableCheckpoint):
    """A checkpoint was written by a later version of mxtrain."""


class RunDirectoryError(MxtrainError):
    """The run directory is in use by another process or cannot be written."""

    exit_code = EXIT_BAD_INPUT


class RunDirectoryLost(MxtrainError):
    """The run directory was removed, moved or replaced while the run wrote to it."""


class LoaderError(MxtrainError):
    """Reading a sample failed while training.

    Args:
        fact: the problem in one sentence.
        remedy: the remedy in one sentence; empty if the calling command knows a better one.
        kind: name of the kind of problem, by which problems are counted; empty if unknown.
    """

    def __init__(self, fact: str, remedy: str = "", kind: str = "") -> None:
        super().__init__(f"{fact} {remedy}".rstrip())
        self.fact, self.remedy, self.kind = fact, remedy, kind


class NonFiniteError(MxtrainError):
    """The loss or the weights became non-finite."""

    exit_code = EXIT_NON_FINITE


class LossWeightError(MxtrainError):
    """The weights that a loss returned sum to 0."""


class PeersLost(MxtrainError):
    """Workers were lost, or new ones want to join; the remaining ones can continue together."""


class DivergenceError(MxtrainError):
    """The weights of workers or replicas differ although they must be equal."""


class NotProven(MxtrainError):
    """An exported network computes other outputs than the trained one."""


class WorseThanAllowed(MxtrainError):
    """The metric of a quantized network is worse by more than the export allows."""


# MXNet, CUDA's libraries, NumPy and C++ raise different exceptions for this, so the message is the only common sign.
OUT_OF_MEMORY = re.compile(
    r"out of memory|Failed to allocate|Unable to allocate|std::bad_alloc|_STATUS_ALLOC_FAILED|Cannot allocate memory"
)
"""Out-of-memory messages of MXNet's allocators (src/storage), CUDA's libraries, NumPy and C++."""
MEMORY_ADVICE = "Lower the batch size, or the number of processes that share the device."


def describe_out_of_memory(error: BaseException, remedy: str = MEMORY_ADVICE) -> str:
    """Returns the message for an out-of-memory error of a device or the host; empty for other errors."""
    lines = [line.strip() for line in str(error).splitlines() if OUT_OF_MEMORY.search(line)]
    if not lines and not isinstance(error, MemoryError):
        return ""
    said = re.sub(r"^(MXNetError|Error): ", "", lines[-1]) if lines else "Python could not allocate it"
    return f"out of memory ({said}). {remedy}"


_DISK_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free some space, then repeat the same command."),
    errno.EFBIG: "Raise the limit (`ulimit -f`), or write to another file system.",
}


def disk_advice(error: OSError) -> str:
    """Returns a sentence with advice, with a blank before it, if the disk is full, the quota is exceeded or the file is
    too large; an empty string for other errors."""
    remedy = _DISK_REMEDIES.get(error.errno or 0)
    return f" {remedy}" if remedy else ""


def describe_unexpected(error: Exception) -> str:
    """Returns the message for an unexpected error. Prints its traceback, unless disk or memory is full, or a file
    exceeds the largest size."""
    said = describe_out_of_memory(error)
    if said:
        return said
    if isinstance(error, OSError) and disk_advice(error):
        file = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{file}.{disk_advice(error)}"
    traceback.print_exc()
    return f"{type(error).__name__}: {error}"


NUMPY_SEMANTICS = (
    "mxtrain computes with mx.nd, and MXNet's NumPy interface is not supported. Type mx.npx.reset_np(), and write "
    "networks, losses and metrics with F or mx.nd instead of F.np, F.npx, mx.np and mx.npx."
)
"""Reason and way out for programs that follow MXNet's NumPy interface, e.g. after npx.set_np()."""


def raise_interruption(error: BaseException) -> None:
    """Raises the `KeyboardInterrupt` that caused an exception, if there is one.

    Up to Python 3.11, Ctrl-C while a module creates a class (in `__set_name__`) arrives as a RuntimeError.
    """
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        cause = cause.__cause__


def nearest(word: str, allowed: Iterable[str], count: int = 1) -> list[str]:
    """Returns the spellings in `allowed` that are closest to `word`, best first; empty if nothing is close."""
    by_lower = {str(name).lower(): str(name) for name in allowed}
    return [by_lower[name] for name in difflib.get_close_matches(str(word).lower(), by_lower, n=count, cutoff=0.55)]


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Returns ` Did you mean 'x'?` with the nearest spelling, or an empty string."""
    found = nearest(word, allowed)
    return f" Did you mean '{found[0]}'?" if found else ""


_PLAIN_NAME = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_][a-z0-9_]*", re.IGNORECASE)
"""Name that needs no quotes in an override, because Hydra reads it neither as a number nor as a boolean or null."""


def name_override(setting: str, name: str) -> str:
    """Returns `setting=name`, quoted for Hydra and the shell if necessary."""
    if _PLAIN_NAME.fullmatch(name):
        return f"{setting}={name}"
    return shlex.quote(f"{setting}={json.dumps(name, ensure_ascii=False)}")


def path_override(setting: str, path: str) -> str:
    """Returns `setting=path`, quoted for Hydra and the shell if necessary."""
    return f"{setting}={path}" if re.fullmatch(r"[\w./~-]*[/a-zA-Z_]", path) else name_override(setting, path)


def list_override(setting: str, names: Iterable[str]) -> str:
    """Returns `setting=[name,...]`, quoted for Hydra and the shell if necessary."""
    names = list(names)
    if all(_PLAIN_NAME.fullmatch(name) for name in names):
        return f"{setting}=[{','.join(names)}]"
    return shlex.quote(f"{setting}={json.dumps(names, ensure_ascii=False, separators=(',', ':'))}")


def reason_of(error: Exception) -> str:
    """Returns why a file could not be read, without its path: the system's text of an `OSError`, else the message."""
    return str(getattr(error, "strerror", None) or error)


MAX_LINE = 300
"""Number of characters that a message quotes of another one."""


def first_line(error: Exception) -> str:
    """Returns the beginning of an error's message, which may have many lines; the name of its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:MAX_LINE]
