"""scripts/fuzz files: damages small files of all formats, and sees that each is read or refused with a sentence."""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from fuzz_parts import run_formats, task_formats  # noqa: F401  (add their formats)
from fuzz_parts.file_damage import damage
from fuzz_parts.file_formats import FORMATS

TIMEOUT_S = 30.0
MEMORY = 6 << 30
"""Bytes of address space of a process that reads."""
SOUNDS = ("speech", "aligned", "kaldi", "common voice", "lj speech", "aishell", "keyword")
"""Beginnings of the formats with recordings."""
MAX_GROWTH = 700 << 20
"""Bytes of memory that reading one small input may take at once."""


class FileFinding(NamedTuple):
    """One damaged input and what became of it; `wrong` is empty where it was read or refused."""

    number: int
    format: str
    done: str
    wrong: str
    seconds: float


def run_one(seed: int, number: int, names: Sequence[str], work: Path) -> Tuple[str, str, str]:
    """Format, damage and fault of a case, in this process; the same seed and number always give the same case."""
    from mxtrain.errors import MxtrainError

    random = Random(f"{seed} {number}")
    name = names[number % len(names)]
    folder = work / f"case-{number}"
    folder.mkdir()
    read = FORMATS[name](folder)
    done = damage(folder, random)
    wrong = ""
    resource_before = _peak()
    try:
        read()
    except MxtrainError as error:
        if "Traceback" in str(error) or not str(error).strip():
            wrong = f"an error without a sentence: {error!r}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = [line.strip() for line in traceback.format_exc().splitlines() if line.strip().startswith("File")][-3:]
        wrong = f"{type(error).__name__}: {str(error)[:200]} | {' | '.join(last)}"
    if not wrong and _peak() - resource_before > MAX_GROWTH:
        wrong = f"takes {(_peak() - resource_before) >> 20:,} MB"
    for path in sorted(folder.rglob("*")):
        if path.is_fifo():
            path.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    return name, done, wrong


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def run_cases(seed: int, numbers: Sequence[int], names: Sequence[str], work: Path) -> Iterator[FileFinding]:
    """Reads cases one after the other in a fork of this process; where it ends or hangs, the case it was at is named,
    and another fork goes on behind it."""
    waiting = list(numbers)
    while waiting:
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reader)
            _read_all(seed, waiting, names, work, writer)
        os.close(writer)
        yield from _watched(process, reader, waiting, names)


def _watched(process: int, reader: int, waiting: List[int], names: Sequence[str]) -> Iterator[FileFinding]:
    began_s, buffer, hung = time.monotonic(), b"", False
    while True:
        left_s = began_s + TIMEOUT_S - time.monotonic()
        ready = select.select([reader], [], [], max(left_s, 0))[0]
        if not ready:
            os.kill(process, signal.SIGKILL)
            hung = True
            break
        part = os.read(reader, 1 << 16)
        if not part:
            break
        buffer += part
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            name, done, wrong = json.loads(line)
            now_s = time.monotonic()
            yield FileFinding(waiting.pop(0), name, done, wrong, now_s - began_s)
            began_s = now_s
    os.close(reader)
    _, status = os.waitpid(process, 0)
    if waiting:
        number = waiting.pop(0)
        said = f"still reading after {TIMEOUT_S:.0f} s" if hung else f"ends the process: status {status}"
        yield FileFinding(number, names[number % len(names)], "", said, time.monotonic() - began_s)


def _read_all(seed: int, numbers: Sequence[int], names: Sequence[str], work: Path, writer: int) -> None:
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        warnings.simplefilter("ignore")
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        for number in numbers:
            line = json.dumps(run_one(seed, number, names, work))
            os.write(writer, line.encode() + b"\n")
            if os.path.isdir(work / "cache/mxtrain/corpora") and number % 50 == 0:
                shutil.rmtree(work / "cache/mxtrain/corpora", ignore_errors=True)
        code = 0
    finally:
        os._exit(code)


def available(names: Sequence[str]) -> List[str]:
    """The formats whose libraries are installed."""
    from importlib.util import find_spec

    needs = {
        **dict.fromkeys(("table.parquet", "series.parquet", "questions.parquet"), "pyarrow"),
        "dicom": "pydicom",
        "sentencepiece.model": "sentencepiece",
        "tokenizer.json": "tokenizers",
    }
    speech = find_spec("soundfile") is not None
    return [
        name
        for name in names
        if (name not in needs or find_spec(needs[name])) and (speech or not name.startswith(SOUNDS))
    ]


def main(arguments: Sequence[str]) -> int:
    """Runs the cases; returns 1 where any is wrong."""
    parser = argparse.ArgumentParser("scripts/fuzz files", description="Damage files of all formats and read them.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--only", default="", metavar="NUMBER,...", help="these cases only")
    parser.add_argument("--formats", default="", metavar="NAME;...", help=f"of: {'; '.join(FORMATS)}")
    options = parser.parse_args(list(arguments))
    names = available(list(FORMATS))
    numbers: Sequence[int] = [int(one) for one in options.only.split(",") if one] or range(
        options.first, options.first + options.cases
    )
    if options.formats:
        numbers = [one for one in numbers if names[one % len(names)] in options.formats.split(";")]
    work = Path(tempfile.mkdtemp(prefix="mxtrain-fuzz-files-"))
    began_s = time.monotonic()
    found: List[FileFinding] = []
    try:
        for one in run_cases(options.seed, numbers, names, work):
            found.append(one)
            if one.wrong:
                print(f"#{one.number} [{one.format}] {one.done}\n  WRONG: {one.wrong}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    summary = summarize(found, options.seed, time.monotonic() - began_s)
    print("\n".join(f"{name}: {value}" for name, value in summary.items()))
    return 1 if summary["wrong"] else 0


def summarize(found: Sequence[FileFinding], seed: int, seconds: float) -> Dict[str, Any]:
    """The figures of all cases together."""
    wrong = Counter(one.format for one in found if one.wrong)
    slowest: Optional[FileFinding] = max(found, key=lambda one: one.seconds, default=None)
    return {
        "seed": seed,
        "cases": len(found),
        "formats": len({one.format for one in found}),
        "seconds": round(seconds),
        "slowest": f"{slowest.seconds:.1f} s, #{slowest.number} [{slowest.format}]" if slowest else "",
        "wrong": sum(wrong.values()),
        "wrong by format": dict(wrong),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
