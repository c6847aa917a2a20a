"""Whether runs of two workers are right while another user of the machine attacks them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Mapping

from bench_parts.fault_run import Outcome, Run, differences
from bench_parts.measured import Measured, Options, Target, say
from bench_parts.processes import ProcessFailed
from bench_parts.stranger import Stranger
from mxtrain.kvstore import has_horovod

REPETITIONS = 20
AT_ONCE = 2
STORES = ("dist_sync", "horovod")
GIVEN = ("trainer.max_epochs=2", "cluster.restarts=0")
ATTACKS = ("reached", "refused", "squatted", "caught")
NOTES = [
    "Two workers on this machine, with dist_sync a server and a scheduler as well, and no restart allowed "
    "(cluster.restarts=0). A process of another user id takes the names that the run's processes will listen on, and "
    "16 around each, before they do, connects to all Unix sockets and TCP ports on which they listen, up to 25 times "
    "each, sends 200 random bytes to whoever answers, and keeps the connections. Root tells it all names and ports as "
    "soon as there are any, which a stranger would have to guess. The run has root's user id, but none of root's "
    "privileges, with which it could remove what others have put in its way.",
    "Right: finished, and the weights and all rows are those of an undisturbed run to the bit. Refused: attempts to "
    "connect that the kernel refused. Reached: connections that were accepted; those of horovod are to the "
    "supervisor's HTTP server, which asks the kernel who is calling and hangs up. Squatted: names taken in advance. "
    "Caught: connections of the run's processes to such a name.",
]


def measure(options: Options) -> Measured:
    found = Measured(notes=list(NOTES), table=[["store", "runs", "right", *ATTACKS]])
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        found.notes.append("Left out: only root can become another user, and setpriv (util-linux) takes privileges.")
        return found
    repetitions = 1 if options.quick else REPETITIONS
    wrong: List[str] = []
    for store in STORES:
        if store == "horovod" and not has_horovod():
            found.notes.append("Horovod is not built here (scripts/horovod): it was not measured.")
            continue
        expected = _expected(store, options.work / store)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            attempts = [
                pool.submit(_attacked, store, expected, options.work / f"{store}-{number}")
                for number in range(repetitions)
            ]
            records = [attempt.result() for attempt in attempts]
        counts: Counter[str] = Counter()
        for record in records:
            counts.update(record["counts"])
        problems = [f"{store}: {record['problem']}" for record in records if record["problem"]]
        wrong += problems
        right = str(repetitions - len(problems))
        found.table.append([store, str(repetitions), right, *(str(counts[attack]) for attack in ATTACKS)])
        found.targets.append(Target(f"{store}: runs that are not right", len(problems), 0, at_least=False))
        found.targets.append(Target(f"{store}: connections to a stranger's socket", counts["caught"], 0, False))
    found.details["wrong"] = wrong
    return found


def _expected(store: str, run_dir: Path) -> Outcome:
    run = Run(run_dir, store, GIVEN)
    run.end()
    return run.outcome()


def _attacked(store: str, expected: Outcome, run_dir: Path) -> Dict[str, Any]:
    """What became of one run, and what its stranger did."""
    run = Run(run_dir, store, GIVEN, before=["setpriv", "--bounding-set=-all"])
    problem, counts = "", dict.fromkeys(ATTACKS, 0)
    stranger = Stranger(run.pid)
    try:
        with stranger:
            run.end()
        problem = differences(run.outcome(), expected, exact=True) or run.left()
    except ProcessFailed as error:
        problem = str(error)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    counts.update(stranger.counts)
    say(f"  {run_dir.name}: {problem or 'right'}, {_shown(counts)}")
    return {"problem": problem, "counts": counts}


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
