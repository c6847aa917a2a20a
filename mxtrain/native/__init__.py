"""Operators of our own in C++, compiled for the processor at hand when they are first needed. No MXNet here.

    *.h, *.cc -> library() -> <cache>/mxtrain/operators-<hash>.so -> mxtrain.engine.backend loads it

Where there is no compiler everything works all the same with MXNet's operators, slower: docs/decisions/0019.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, NamedTuple, Optional, Sequence, Union

from mxtrain.files.cache import Untrusted, opened, own_folder

VARIABLE = "MXTRAIN_OPERATORS"
"""off: MXNet's operators only; all else, and unset: ours where they can be had. Set by `runtime.operators`."""
OFF = "off"
SWITCHED_OFF = "they are switched off"
NO_COMPILER = "no C++ compiler was found"
FOLDER = Path(__file__).parent
SOURCES = (
    "mxnet_library.h", "mxnet_library.cc", "common.h", "product.h", "table_rows.h", "attention.cc",
    "attention_step.cc", "norm.cc", "cross_entropy.cc", "adamw.cc", "sgd.cc", "squares.cc",
    "roi_align.cc", "suppression.cc", "gelu.cc", "operators.cc",
)  # fmt: skip
FLAGS = (
    # No -ffast-math: it would flush denormals in the whole process, and ignore NaN. No contraction: AdamW
    # must give the same bits on all workers, whatever their processors.
    "-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off",
)  # fmt: skip
COMPILE_TIMEOUT_S = 300
FOLDER_PREFIX = "compiling-"
_LOCKED_WITHIN_S = 2
"""A process locks the folder that it has made."""

log = logging.getLogger(__name__)


class Library(NamedTuple):
    """The result of `library`.

    Attributes:
        path: of the shared library, or None if there is none.
        why: why there is none, or "".
    """

    path: Optional[Path]
    why: str = ""


def library() -> Library:
    """The compiled operators; the first call on a machine compiles them, which takes about 30 s of processor time, on
    all cores. Never raises for what the machine lacks."""
    if os.environ.get(VARIABLE) == OFF:
        return Library(None, SWITCHED_OFF)
    given = os.environ.get("CXX")
    try:
        compiler = shlex.split(given or "g++")
    except ValueError as error:
        return Library(None, f"CXX={given}: {error}")
    if not compiler or shutil.which(compiler[0]) is None:
        return Library(None, f"there is no {given}, which CXX names" if given else f"{NO_COMPILER}: no g++ in PATH")
    try:
        return Library(_compiled(compiler))
    except Untrusted as error:
        return Library(None, f"the cache folder cannot be trusted: {error}")
    except (OSError, RuntimeError, KeyError, subprocess.SubprocessError) as error:  # two: there is no home directory
        said = str(getattr(error, "stderr", "") or "") if isinstance(error, subprocess.CalledProcessError) else ""
        lines = (said or str(error)).strip().splitlines() or [repr(error)]
        return Library(None, f"they could not be compiled: {lines[0]}")


def _compiled(compiler: Sequence[str]) -> Path:
    target = _run(*compiler, *FLAGS, "-dM", "-E", "-x", "c++", "-")  # compiler, version and instruction sets
    made_of = [*compiler, target, *FLAGS, *((FOLDER / name).read_text("utf-8") for name in SOURCES)]
    key = f"operators-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}"
    cache = own_folder()
    # Loading a truncated library would end the process, so the file name contains a hash of the content.
    whole = (path for path in sorted(cache.glob(f"{key}-*.so")) if _is_whole(path))
    path = next(whole, None)
    return path if path is not None else _compile(compiler, cache, key)


def _compile(compiler: Sequence[str], cache: Path, key: str) -> Path:
    log.info("compiling mxtrain's operators for this processor: once, up to half a minute")
    for old in cache.glob(f"{FOLDER_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process was faster
            if _is_abandoned(old):
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, dir=cache) as folder, _lock(folder):
        made = Path(folder) / "operators.so"
        sources = [FOLDER / name for name in SOURCES if name.endswith(".cc")]
        objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            waiting = [pool.submit(_run, *compiler, *FLAGS, "-c", str(source), "-o", target)
                       for source, target in zip(sources, objects)]  # fmt: skip
            for one in waiting:
                one.result()
        _run(*compiler, *FLAGS, *objects, "-o", str(made), "-ldl")
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.chmod(0o700)
        path = cache / f"{key}-{_digest(made.read_bytes())}.so"
        os.replace(made, path)
    return path


def _is_abandoned(folder: Path) -> bool:
    """Returns True if the process that made a folder is gone: its lock is free, or it is older than any
    compilation.

    Raises:
        FileNotFoundError: the folder is gone, too.
    """
    age_s = time.time() - folder.stat().st_mtime
    if age_s < _LOCKED_WITHIN_S:
        return False
    with _lock(folder) as is_ours:
        return is_ours or age_s > 2 * COMPILE_TIMEOUT_S


@contextmanager
def _lock(folder: Union[str, Path]) -> Iterator[bool]:
    """Takes the lock of a folder; yields False if another process holds it or the file system has no locks. The kernel
    releases it when the process ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_ours = False
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        yield is_ours
    finally:
        os.close(descriptor)


@contextmanager
def loadable(path: Path) -> Iterator[str]:
    """A path by which a library of the cache can be loaded, as it was checked: other users cannot replace it meanwhile.

    Raises:
        OSError: it is not there, not whole, or others own or can write it.
    """
    with opened("", path.name) as file:
        if not path.stem.endswith(f"-{_digest(file.read())}"):
            raise Untrusted(f"{path} is not what was compiled")
        yield f"/proc/self/fd/{file.fileno()}"


def _is_whole(path: Path) -> bool:
    try:
        with loadable(path):
            return True
    except OSError:
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _run(*command: str) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, input="", text=True, errors="replace", timeout=COMPILE_TIMEOUT_S
    )
    return done.stdout
