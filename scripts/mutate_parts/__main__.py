"""scripts/mutate: chosen faults, and changes drawn by chance, against the tests."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from mutate_parts.faults import FAULTS
from mutate_parts.forks import Copy
from mutate_parts.mutants import AREAS, GROUPS, Mutant, draw
from mutate_parts.tracing import Tracer

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / ".mutate"
RECORDED = {
    "engine": (
        "tests/reference",
        "tests/loss",
        "tests/parallel",
        "tests/kvstore",
        "tests/amp",
        "tests/optimizer",
        "tests/metric",
        "tests/training/test_runner.py",
        "tests/workflows/test_verify.py",
        "tests/training/test_nonfinite.py",
        "tests/training/test_evaluate.py",
        "tests/training/test_snapshot.py",
        "tests/training/test_step.py",
        "tests/task",
        "tests/training/test_build.py",
        "tests/test_end_to_end.py",
    ),
    "results": (
        "tests/exporting",
        "tests/serving",
        "tests/tuning",
        "tests/callback/test_pruning.py",
        "tests/callback/test_pruning_schedule.py",
        "tests/callback/test_pruned_models.py",
        "tests/checkpoint/test_soup.py",
        "tests/checkpoint/test_average.py",
        "tests/cli/test_tune.py",
        "tests/data/loading/test_fold_splits.py",
        "tests/cluster/launch/test_folds.py",
        "tests/cli/test_fold_groups.py",
        "tests/logger",
    ),
}
"""Quick tests that cover much code."""
FILES: Dict[str, Sequence[str]] = {
    "export": (
        "test_export_command",
        "test_quantize",
        "test_parts_and_limits",
        "test_exported_features",
        "test_exported_inputs",
        "test_exported_readers",
        "test_export_contract",
        "test_quantized_parts",
        "test_proof_bounds",
        "test_hostile_folders",
    ),
    "converters": (
        "test_export_contract",
        "test_exported_readers",
        "test_exported_inputs",
        "test_converters",
        "test_converter_defaults",
        "test_converter_sweep",
    ),
    "serving": (
        "test_serving_limits",
        "test_serving_generation",
        "test_serving_requests",
        "test_serving_tables",
        "test_serving_uploads",
        "test_serving_page",
        "test_serving_folders",
        "test_serving_users",
        "test_serving_bounds",
        "test_serving_calls",
    ),
    "tuning": ("test_tune", "test_stranger_studies", "test_worker", "test_population", "test_samplers"),
    "pruning": ("test_pruned_models", "test_pruning", "test_pruning_schedule"),
    "folds": ("test_folds", "test_fold_groups", "test_fold_splits"),
    "averages": ("test_soup", "test_average"),
    "trackers": ("test_trackers", "test_tracker_clients", "test_tracker_names"),
}
"""Area -> test files that `--whole` runs. Files that start processes come first: records do not contain their lines."""
MAX_S = 60.0
"""Limit in seconds for all tests of one change."""


def faults(arguments: argparse.Namespace, copy: Copy) -> int:
    """Applies each fault by itself, and checks that one of its tests fails."""
    survivors = 0
    for number, fault in enumerate(FAULTS):
        if arguments.only and arguments.only not in fault.name:
            continue
        path = copy.folder / fault.file
        source = path.read_text()
        if source.count(fault.old) != 1:
            print(
                f"{number:3} STALE     {fault.name}: {fault.file} holds {source.count(fault.old)} times {fault.old!r}"
            )
            survivors += 1
            continue
        with copy.changed(fault.file, source.replace(fault.old, fault.new)):
            outcome = copy.run(fault.tests, 5 * MAX_S)
        survivors += not outcome.died
        said = f"died in {outcome.seconds:4.0f} s" if outcome.died else "SURVIVED   "
        print(f"{number:3} {said}  {fault.name}  {outcome.last_line if outcome.died else ''}", flush=True)
    print(f"{survivors} of {len(FAULTS)} faults are not noticed")
    return int(survivors > 0)


def record(arguments: argparse.Namespace, copy: Copy) -> int:
    """Records the tests that run each line."""
    patterns = [pattern for area in GROUPS[arguments.group].values() for pattern in area]
    files = {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)}
    tests = [name for name in arguments.tests or RECORDED[arguments.group] if (ROOT / name).exists()]
    RECORDS.mkdir(exist_ok=True)
    result = RECORDS / f"{zlib.crc32(' '.join([*tests, arguments.mark]).encode()):08x}.json"
    result.unlink(missing_ok=True)
    outcome = copy.run([*tests, "-m", arguments.mark], 3600, [Tracer(copy.folder, files, result)])
    print(outcome.output[-3000:])
    return 0 if result.exists() else 1


def recorded() -> Dict[str, Any]:
    """Joins all records."""
    lines: Dict[str, Dict[str, List[str]]] = {}
    seconds: Dict[str, float] = {}
    for path in sorted(RECORDS.glob("*.json")):
        found = json.loads(path.read_text())
        seconds.update(found["seconds"])
        for file, places in found["lines"].items():
            for line, tests in places.items():
                lines.setdefault(file, {}).setdefault(line, []).extend(tests)
    return {"lines": lines, "seconds": seconds}


def draw_some(arguments: argparse.Namespace, copy: Copy) -> int:
    """Writes a line of JSON for each change, with the change and the result of the tests."""
    known = recorded()
    mutants = draw(copy.folder, arguments.seed, arguments.count, arguments.group)[arguments.first : arguments.last]
    seconds: Dict[Tuple[str, ...], float] = {}

    def passes(run: Tuple[str, ...]) -> bool:
        """Returns True if these tests pass without a mutation; tests that fail anyway detect nothing."""
        if run not in seconds:
            outcome = copy.run(run, 3600)
            seconds[run] = math.inf if outcome.died else outcome.seconds
            print(f"    {run[0]}: {outcome.last_line if outcome.died else f'{outcome.seconds:.0f} s'}", flush=True)
        return math.isfinite(seconds[run])

    with open(arguments.output, "a") as written:
        for number, mutant in enumerate(mutants, start=arguments.first):
            if arguments.areas and mutant.area not in arguments.areas:
                continue
            if arguments.numbers and number not in arguments.numbers:
                continue
            tests = [*arguments.also, *covering(known, mutant, arguments.longest)]
            runs = [tuple(tests)] if tests else []
            if arguments.whole:
                runs = files_of(mutant, arguments.mark)
            row: Dict[str, Any] = {"number": number, **vars(mutant), "tests": len(tests), "outcome": "no test"}
            del row["source"]
            spent = 0.0
            for run in runs:
                if arguments.whole and not passes(run):
                    continue
                with copy.changed(mutant.file, mutant.source):
                    outcome = copy.run(run, 5 * seconds[run] + 60 if arguments.whole else 3 * arguments.longest + 60)
                spent += outcome.seconds
                row.update(
                    outcome="died" if outcome.died else "survived",
                    by=outcome.last_line if outcome.died else "",
                    seconds=round(spent, 1),
                )
                if outcome.died:
                    break
            written.write(json.dumps(row) + "\n")
            written.flush()
            print(
                f"{number:3} {row['outcome']:8} {mutant.file}:{mutant.lines[0]} {mutant.kind}: {mutant.before}"
                f"  ->  {mutant.after}",
                flush=True,
            )
    return 0


def files_of(mutant: Mutant, mark: str) -> List[Tuple[str, ...]]:
    """Returns the arguments of pytest for each test file of an area. Files named after the changed one come first."""
    names = sorted(FILES.get(mutant.area, ()), key=lambda name: Path(mutant.file).stem not in name)
    paths = [path.relative_to(ROOT) for name in names for path in (ROOT / "tests").rglob(f"{name}.py")]
    return [(str(path), "-m", mark) for path in paths]


def covering(known: Dict[str, Any], mutant: Mutant, longest_s: float) -> List[str]:
    """The tests that run the changed line, those of its own area first, then the quick ones, up to a time in all.

    A line that runs when its module is imported (a default, a table) counts as run by all that run the module.
    """
    lines, seconds = known["lines"].get(mutant.file, {}), known["seconds"]
    first, last = mutant.lines
    tests = sorted({test for line in range(first, last + 1) for test in lines.get(str(line), [])})
    if mutant.at_import:
        tests = sorted({test for found in lines.values() for test in found})
    stem = Path(mutant.file).stem

    def is_near(test: str) -> bool:
        return any(name in test for name in (f"/{mutant.area}/", f"test_{mutant.area}", f"test_{stem}"))

    chosen: List[str] = []
    total = 0.0
    for test in sorted(tests, key=lambda one: (not is_near(one), seconds.get(one, 0.0))):
        total += seconds.get(test, 0.0)
        if total > longest_s and chosen:
            break
        chosen.append(test)
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("faults").add_argument("only", nargs="?", help="only faults with this text in their name")
    recording = commands.add_parser("record")
    recording.add_argument("tests", nargs="*")
    recording.add_argument("--mark", default="not zoo", help="as of pytest -m")
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--count", type=int, default=200)
    drawing.add_argument("--first", type=int, default=0)
    drawing.add_argument("--last", type=int, default=None)
    drawing.add_argument("--longest", type=float, default=MAX_S, help="seconds of the tests of one change")
    drawing.add_argument("--areas", nargs="*", choices=list(AREAS), help="only these of them")
    drawing.add_argument("--numbers", nargs="*", type=int, help="only these of them")
    drawing.add_argument("--whole", action="store_true", help="the test files of its area, not recorded tests")
    drawing.add_argument("--mark", default="not zoo", help="as of pytest -m, with --whole")
    drawing.add_argument("--also", nargs="*", default=[], help="tests to begin with")
    drawing.add_argument("--output", default="mutants.jsonl")
    for command in (recording, drawing):
        command.add_argument("--group", choices=list(GROUPS), default="engine", help="group of areas")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mxtrain-mutate-") as folder:
        copy = Copy(ROOT, Path(folder) / "checkout")
        copy.preload()
        return {"faults": faults, "record": record, "draw": draw_some}[arguments.command](arguments, copy)


if __name__ == "__main__":
    sys.exit(main())
