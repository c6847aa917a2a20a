"""Another user of this machine who squats the names that a run may take next and sends garbage to wherever it listens.

It knows more than a real one could: this process, which must be root's, tells it all that the run's processes listen
on. So it is as quick as one who guesses right each time, and leaves everybody else on the machine alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from bench_parts.fault_run import Outcome, Run, differences
from bench_parts.harness import Measured, Options, ProcessFailed, say
from mxtrain.kvstore.spec import has_horovod
from mxtrain.private_sockets.folder import VARIABLE as FOLDER

NOBODY = 65534
LOOK_S = 0.01
"""Between two looks at what the run listens on."""
FAMILY_S = 0.2
"""Between two looks at which processes it has."""

ATTACK = r"""
import json, os, selectors, socket, sys
os.setgroups([])  # after the imports: the other user may not read where Python is
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
GARBAGE, AROUND, AGAIN = os.urandom(200), 8, 25
counts = {"reached": 0, "refused": 0, "squatted": 0, "caught": 0}
ready, tries, squatted = selectors.DefaultSelector(), {}, []
os.set_blocking(0, False)
ready.register(0, selectors.EVENT_READ, "orders")

def squat(path):
    folder, name = os.path.split(path)
    for number in range(int(name) - AROUND, int(name) + AROUND + 1) if name.isdigit() else ():
        place, listener = os.path.join(folder, str(number)), socket.socket(socket.AF_UNIX)
        try:
            listener.bind(place)
            os.chmod(place, 0o777)
            listener.listen(64)
            listener.setblocking(False)
        except OSError:
            listener.close()
            continue
        squatted.append(place)
        counts["squatted"] += 1
        ready.register(listener, selectors.EVENT_READ, "squatter")

def send(target):
    tries[target] = tries.get(target, 0) + 1
    if tries[target] > AGAIN:
        return
    client = socket.socket(socket.AF_UNIX if target.startswith("/") else socket.AF_INET)
    client.settimeout(0.5)
    try:
        client.connect(target if target.startswith("/") else ("127.0.0.1", int(target)))
        client.send(GARBAGE)
    except OSError:
        counts["refused"] += 1
        client.close()
        return
    counts["reached"] += 1
    kept.append(client)

kept, rest, goes_on = [], b"", True
print("{}", flush=True)
while goes_on:
    for key, _ in ready.select(0.5):
        if key.data == "squatter":
            caught = key.fileobj.accept()[0]
            counts["caught"] += 1
            try:
                caught.send(GARBAGE)
            except OSError:
                pass
            kept.append(caught)
            continue
        read = os.read(0, 1 << 16)
        goes_on = bool(read)
        *lines, rest = (rest + read).split(b"\n")
        for target in map(json.loads, lines):
            if target.startswith("/") and target not in tries:
                squat(target)
            send(target)
for place in squatted:
    try:
        os.unlink(place)
    except OSError:
        pass
print(json.dumps(counts), flush=True)
"""


class Stranger:
    """Attacks a process and all that it starts, until it is left.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int):
        self._pid = pid
        self.counts: Dict[str, int] = {}
        """reached: connections that were accepted by somebody; refused; squatted: names taken; caught: connections to
        these."""

    def __enter__(self) -> Stranger:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ATTACK, str(NOBODY)],
            cwd="/",
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdout.readline()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.counts = json.loads(self._process.communicate(timeout=60)[0])

    def _show(self) -> None:
        """Tells the stranger where the run listens, again and again."""
        family: List[int] = []
        looked = 0.0
        stream = self._process.stdin
        while not self._ends.wait(LOOK_S) and stream is not None:
            if time.monotonic() - looked > FAMILY_S:
                family, looked = list(family_of(self._pid)), time.monotonic()
            for target in listened_to(family) | names_to_come(family):
                stream.write(json.dumps(target) + "\n")
            stream.flush()


def family_of(pid: int) -> Iterator[int]:
    """A process and all below it."""
    parents: Dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        state = _read(path / "stat")
        if state:
            parents[int(path.name)] = int(state.rpartition(")")[2].split()[1])
    for each in parents:
        above: Optional[int] = each
        while above is not None and above != pid:
            above = parents.get(above)
        if above == pid:
            yield each


def names_to_come(family: List[int]) -> Set[str]:
    """Paths at which these processes will listen, as their environment has it."""
    found = set()
    for pid in family:
        words = [word.partition("=") for word in _read(Path(f"/proc/{pid}/environ")).split("\0")]
        told = {name: value for name, _, value in words}
        ports = {told[name] for name in ("PORT", "DMLC_PS_ROOT_PORT") if name in told}
        found |= {f"{told.get(FOLDER, '/tmp')}/{port}" for port in ports if told.get("DMLC_LOCAL") == "1"}
    return found


def listened_to(family: List[int]) -> Set[str]:
    """Paths of Unix sockets, and TCP ports, on which these processes listen."""
    own = {inode for pid in family for inode in _sockets_of(pid)}
    found = set()
    for place, inode in _listeners():
        if inode in own:
            found.add(place)
    return found


def _sockets_of(pid: int) -> Iterator[str]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _listeners() -> Iterator[Tuple[str, str]]:
    """(path or port, inode)."""
    for line in _read(Path("/proc/net/unix")).splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[7].startswith("/") and fields[5] == "01":
            yield fields[7], fields[6]
    for line in _read(Path("/proc/net/tcp")).splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and re.match("(0100007F|00000000):", fields[1]):
            yield str(int(fields[1].partition(":")[2], 16)), fields[9]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# Whether runs of two workers are right while such a user attacks them.

GIVEN = ("trainer.max_epochs=2", "cluster.restarts=0")
ATTACKS = ("reached", "refused", "squatted", "caught")


def needs_root(options: Options) -> str:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return "only root can become another user, and setpriv (util-linux) takes privileges"
    return ""


def measure(options: Options) -> Measured:
    """Twenty runs of each store, two at a time."""
    found = Measured(table=[["store", "runs", "right", *ATTACKS]], details={"wrong": []})
    repetitions = 1 if options.quick else 20
    for store in ("dist_sync", *(["horovod"] if has_horovod() else [])):
        run = Run(options.work / store, store, GIVEN)
        run.end()
        with ThreadPoolExecutor(2) as pool:
            folders = [options.work / f"{store}-{number}" for number in range(repetitions)]
            records = list(pool.map(partial(_attacked, store, run.outcome()), folders))
        counts: Counter[str] = Counter()
        for _, own in records:
            counts.update(own)
        problems = [f"{store}: {problem}" for problem, _ in records if problem]
        found.details["wrong"] += problems
        numbers = [repetitions, repetitions - len(problems), *(counts[attack] for attack in ATTACKS)]
        found.table.append([store, *map(str, numbers)])
        found.at_most(f"{store}: runs that are not right", len(problems), 0)
        found.at_most(f"{store}: connections to a stranger's socket", counts["caught"], 0)
    return found


def _attacked(store: str, expected: Outcome, run_dir: Path) -> Tuple[str, Dict[str, Any]]:
    """What is wrong with one run, or an empty string, and what its stranger did."""
    run = Run(run_dir, store, GIVEN, before=["setpriv", "--bounding-set=-all"])
    stranger = Stranger(run.pid)
    try:
        with stranger:
            run.end()
        problem = differences(run.outcome(), expected, exact=True) or run.left()
    except ProcessFailed as error:
        problem = str(error)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    say(f"  {run_dir.name}: {problem or 'right'}, {stranger.counts}")
    return problem, stranger.counts
