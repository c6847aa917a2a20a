"""Corpora: preparing text against the library's own batch encoding, memory, and the second start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Mapping

from bench_parts.measured import Measured, Options, Series, Target, in_turn
from bench_parts.processes import ROOT, run, untouched_environment

MEGABYTES, TURN_MEGABYTES = 1000.0, 200.0
TABLE_MEGABYTES, TABLE_ROWS = 85.0, 400_000
MAX_PEAK_MB, MAX_STEP_S, MIN_RATIO = 500, 3.0, 0.8
REPETITIONS = 3


def measure(options: Options) -> Measured:
    """Encodes in turns with `tokenizers`; then prepares a large text once, starts again, and reads a table."""
    large, small, table = options.work / "large.txt", options.work / "small.txt", options.work / "table.csv"
    size, turn_size = (2.0, 1.0) if options.quick else (MEGABYTES, TURN_MEGABYTES)
    rows = 1000 if options.quick else TABLE_ROWS
    _make(options.work, large, size)
    _make(options.work, small, turn_size)
    _make(options.work, table, 1.0 if options.quick else TABLE_MEGABYTES, rows)
    vocab = _vocabulary(options.work)
    measured = Measured()
    sides = {
        "ours": lambda number: turn_size / _side(options.work, f"turn{number}", "prepare", small, vocab)["tokens_s"],
        "library": lambda number: turn_size / _side(options.work, "library", "library", small, vocab)["tokens_s"],
    }
    found = in_turn(sides, 1 if options.quick else REPETITIONS)
    measured.series.append(Series("text to tokens in shards on the disk", "MB/s", found["ours"]))
    measured.series.append(Series("tokenizers' encode_batch, nothing else", "MB/s", found["library"]))
    measured.compare("ours / encode_batch, as many threads", found["ours"], found["library"], MIN_RATIO)
    first = _side(options.work, "large", "prepare", large, vocab)
    again = [_side(options.work, "large", "step", large, vocab) for _ in range(1 if options.quick else REPETITIONS)]
    took_s = first["texts_s"] + first["tokens_s"]
    measured.series.append(Series(f"{size:g} MB, text file to first batch", "MB/s", [size / took_s]))
    measured.series.append(Series("second start: imports done to the end of a run of one step", "s",
                                  [one["step_s"] for one in again]))  # fmt: skip
    measured.targets.append(Target(f"peak memory of preparing {size:g} MB, MB", first["peak_mb"], MAX_PEAK_MB, False))
    measured.targets.append(Target("second start, s", measured.series[-1].median, MAX_STEP_S, False))
    measured.table = [["table of texts", "first batch, s", "again, s", "peak memory, MB"]]
    checkouts = {"now": ROOT, **({"before": Path(options.before).resolve()} if options.before else {})}
    for name, checkout in checkouts.items():
        one, two = (_side(options.work, f"table_{name}", "table", table, checkout=checkout) for _ in range(2))
        row = [f"{one['first_batch_s']:.1f}", f"{two['first_batch_s']:.1f}", f"{one['peak_mb']:.0f}"]
        measured.table.append([f"{rows:,} rows, {name}", *row])
    measured.details = {"first": first, "again": again}
    measured.notes.append(
        "Texts of Python's library and reference with a tenth of the words exchanged; byte-level BPE of 8,000 tokens. "
        "Ours reads the stored texts, encodes, and writes shards with checksums; the library only encodes."
    )
    return measured


def _make(work: Path, path: Path, megabytes: float, rows: int = 0) -> None:
    run(["-m", "bench_parts.corpus_files", str(path), str(megabytes), str(rows)], untouched_environment(), work)


def _vocabulary(work: Path) -> Path:
    path = work / "vocabulary.json"
    run(["-m", "bench_parts.corpus_side", "train", str(path)], untouched_environment(), work)
    return path


def _side(work: Path, cache: str, side: str, *files: Path, checkout: Path = ROOT) -> Dict[str, Any]:
    """What a side printed, with a cache of that name."""
    environment: Mapping[str, str] = {**untouched_environment(), "XDG_CACHE_HOME": str(work / f"cache_{cache}")}
    if checkout != ROOT:
        environment = {**environment, "PYTHONPATH": f"{ROOT / 'scripts'}:{checkout}"}
    done = run(["-m", "bench_parts.corpus_side", side, *map(str, files)], environment, work)
    found: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
