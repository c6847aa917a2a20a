"""Compiles mxtrain's own C++ operators for the host CPU on first use. Does not import MXNet.

    *.h, *.cc -> library() -> <cache>/mxtrain/operators-<hash>.so -> mxtrain.engine.backend loads it

Without a compiler, mxtrain falls back to MXNet's slower operators, see docs/decisions/0019-cpp-operators.md.
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
"""Environment variable: "off" uses MXNet's operators only; otherwise mxtrain's are used if they are available. Set by
`runtime.operators`."""
OFF = "off"
SWITCHED_OFF = "they are switched off"
NO_COMPILER = "no C++ compiler was found"
FOLDER = Path(__file__).parent
SOURCES = (
    "mxnet_library.h",
    "mxnet_library.cc",
    "common.h",
    "product.h",
    "table_rows.h",
    "attention.cc",
    "attention_step.cc",
    "norm.cc",
    "cross_entropy.cc",
    "adamw.cc",
    "sgd.cc",
    "squares.cc",
    "roi_align.cc",
    "suppression.cc",
    "gelu.cc",
    "operators.cc",
)
FLAGS = (
    # No -ffast-math: it would flush denormals to zero in the whole process and assume that no value is NaN.
    # No contraction to FMA: AdamW must compute identical bits on all workers, even with different CPUs.
    "-O3",
    # The library stays on this machine: wheels would have to be built for the oldest processor or for several.
    "-march=native",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
)
COMPILE_TIMEOUT_S = 300
FOLDER_PREFIX = "compiling-"
_LOCKED_WITHIN_S = 2
"""Seconds within which a process locks the folder that it has created. Younger folders do not count as abandoned."""

log = logging.getLogger(__name__)


class Library(NamedTuple):
    """The result of `library`.

    Attributes:
        path: path of the shared library; None if it is not available.
        why: clause with the reason why it is not available; otherwise "".
    """

    path: Optional[Path]
    why: str = ""


def library() -> Library:
    """Returns the compiled operators. The first call on a machine compiles them: about 30 s of CPU time on all cores.

    A missing compiler or cache folder does not raise; the result then has the reason in `why`.
    """
    if os.environ.get(VARIABLE) == OFF:
        return Library(None, SWITCHED_OFF)
    cxx = os.environ.get("CXX")
    try:
        compiler = shlex.split(cxx or "g++")
    except ValueError as error:
        return Library(None, f"CXX={cxx}: {error}")
    if not compiler or shutil.which(compiler[0]) is None:
        return Library(None, f"there is no {cxx}, which CXX names" if cxx else f"{NO_COMPILER}: no g++ in PATH")
    try:
        return Library(_compiled(compiler))
    except Untrusted as error:
        return Library(None, f"the cache folder cannot be trusted: {error}")
    # RuntimeError and KeyError: the user has no home directory.
    except (OSError, RuntimeError, KeyError, subprocess.SubprocessError) as error:
        stderr = str(getattr(error, "stderr", "") or "") if isinstance(error, subprocess.CalledProcessError) else ""
        lines = (stderr or str(error)).strip().splitlines() or [repr(error)]
        return Library(None, f"they could not be compiled: {lines[0]}")


def _compiled(compiler: Sequence[str]) -> Path:
    # Two machines that share a home folder may have different instruction sets, so these are part of the name.
    target = _run(*compiler, *FLAGS, "-dM", "-E", "-x", "c++", "-")  # compiler, version and instruction sets
    hashed_inputs = [*compiler, target, *FLAGS, *((FOLDER / name).read_text("utf-8") for name in SOURCES)]
    key = f"operators-{hashlib.sha256(chr(0).join(hashed_inputs).encode()).hexdigest()[:16]}"
    # The cache decides which code runs, so the folder must belong to this user and be closed to others.
    cache = own_folder()
    # Loading a truncated library would end the process, so the file name contains a hash of the content.
    complete = (path for path in sorted(cache.glob(f"{key}-*.so")) if _is_complete(path))
    path = next(complete, None)
    return path if path is not None else _compile(compiler, cache, key)


def _compile(compiler: Sequence[str], cache: Path, key: str) -> Path:
    log.info("compiling mxtrain's operators for this processor: once, up to half a minute")
    # A killed process leaves its folder behind, and nobody else would remove it.
    for old in cache.glob(f"{FOLDER_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process was faster
            if _is_abandoned(old):
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, dir=cache) as folder, _lock(folder):
        shared_library = Path(folder) / "operators.so"
        sources = [FOLDER / name for name in SOURCES if name.endswith(".cc")]
        objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # its threads only wait for compilers
            compilations = [
                pool.submit(_run, *compiler, *FLAGS, "-c", str(source), "-o", target)
                for source, target in zip(sources, objects)
            ]
            for compilation in compilations:
                compilation.result()
        _run(*compiler, *FLAGS, *objects, "-o", str(shared_library), "-ldl")
        # After a crash, a renamed file must not be empty: its content has to be on the disk first.
        with shared_library.open("rb") as file:
            os.fsync(file.fileno())
        # A file that others could write would be refused when it is loaded.
        shared_library.chmod(0o700)
        path = cache / f"{key}-{_digest(shared_library.read_bytes())}.so"
        # Two processes may compile at once: the rename is atomic, and the name follows from the content.
        os.replace(shared_library, path)
    return path


def _is_abandoned(folder: Path) -> bool:
    """Returns True if the process that created a folder has ended: its lock is free, or no compilation takes that long.

    Raises:
        FileNotFoundError: the folder does not exist any more.
    """
    age_s = time.time() - folder.stat().st_mtime
    if age_s < _LOCKED_WITHIN_S:
        return False
    with _lock(folder) as acquired:
        return acquired or age_s > 2 * COMPILE_TIMEOUT_S


@contextmanager
def _lock(folder: Union[str, Path]) -> Iterator[bool]:
    """Locks a folder. Yields False if another process holds the lock or the file system does not support locks.

    The kernel releases the lock when the process ends.
    """
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
    """Yields a path that loads exactly the library that was checked, even if its file is replaced in the meantime.

    Raises:
        OSError: the file is missing or damaged, or another user owns or can write it.
    """
    with opened("", path.name) as file:
        # A truncated or exchanged library ends the process that loads it, so the content is hashed before each loading.
        if not path.stem.endswith(f"-{_digest(file.read())}"):
            raise Untrusted(f"{path} has another content than its name says")
        # The path of the open file, not its name: nobody can swap the file between the check and dlopen.
        yield f"/proc/self/fd/{file.fileno()}"


def _is_complete(path: Path) -> bool:
    try:
        with loadable(path):
            return True
    except OSError:
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _run(*command: str) -> str:
    # No input: a compiler that asks something must not wait for the user's terminal.
    result = subprocess.run(
        command, check=True, capture_output=True, input="", text=True, errors="replace", timeout=COMPILE_TIMEOUT_S
    )
    return result.stdout
