"""The harness of all parts: environments, processes, turns, figures and targets.

Sides that are compared are processes that stand still while it is another's turn, or functions that are called in turn.
A machine drifts within seconds: two sides that are measured one after the other meet different machines, two that
take turns meet the same one. A block ends when all of its work is done, on all sides.

    in_turns                    a side (turn.py)
    "g"                    ->   begins a block
    seconds, steps         <-   the block is done
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from bench_parts.turn import SOCKET

ROOT = Path(__file__).resolve().parents[2]
# Whatever tunes MXNet, oneDNN, OpenMP or BLAS.
TUNING = ("OMP_", "KMP_", "GOMP_", "MXNET_", "DNNL_", "MKL_", "OPENBLAS_", "MXTRAIN_RUNTIME")
TIMEOUT_S, BLOCK_S = 1800, 300
REST_S = 0.3
"""PyTorch's and plain MXNet's threads spin for 0.2 s after their work; the next side must not meet that."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ENDS_WELL = (0, 75)
"""Exit codes of a run that finished, or reached trainer.max_steps."""


class ProcessFailed(Exception):
    """A measured process ended in a way that it should not have."""


@dataclass(frozen=True)
class Options:
    """Options of the command line.

    Attributes:
        quick: tiny versions that only show that the part works.
        work: an empty folder for what runs write.
        records: where a part that takes hours writes each run, and finds those it need not repeat; None: nowhere.
        before: another checkout to compare with, or empty.
        minutes: after which such a part begins no further run.
        turns: blocks of each side, where a part lets that be chosen; 0: its own number.
        steps: of a block, likewise.
        peers: folder of the environments of other servers, or "".
        only: a part of the names of what is measured, where a part lets that be chosen.
    """

    quick: bool
    work: Path
    gluoncv_script: str = ""
    torch_python: str = ""
    peers: str = ""
    records: Optional[Path] = None
    minutes: float = math.inf
    before: str = ""
    turns: int = 0
    steps: int = 0
    only: str = ""

    def checkouts(self) -> Dict[str, Path]:
        """This one, and that of `before` where there is one."""
        return {"now": ROOT, **({"before": Path(self.before).resolve()} if self.before else {})}


# What is found.


@dataclass(frozen=True)
class Series:
    """The same quantity measured several times."""

    name: str
    unit: str
    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def quartiles(self) -> List[float]:
        """The first and the third; with fewer than two values the value itself."""
        if len(self.values) < 2:
            return [self.median, self.median]
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return [first, third]

    def to_json(self) -> Dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "quartiles": self.quartiles(),
            "min": min(self.values),
            "max": max(self.values),
            "values": list(self.values),
        }


@dataclass(frozen=True)
class Target:
    """One number that had to be reached."""

    name: str
    value: float
    limit: float
    at_least: bool
    """True: the value must be the limit or more; False: the limit or less."""

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def to_json(self) -> Dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "limit": self.limit,
            "at_least": self.at_least,
            "met": self.met,
        }


@dataclass
class Measured:
    """All that one part found."""

    series: List[Series] = field(default_factory=list)
    targets: List[Target] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    """Sentences on how it was measured."""
    details: Dict[str, Any] = field(default_factory=dict)
    table: List[List[str]] = field(default_factory=list)
    """Results that are no series: a row of titles and further rows."""

    def add(self, name: str, unit: str, values: Sequence[float]) -> None:
        self.series.append(Series(name, unit, values))

    def at_most(self, name: str, value: float, limit: float) -> None:
        self.targets.append(Target(name, float(value), limit, at_least=False))

    def at_least(self, name: str, value: float, limit: float) -> None:
        self.targets.append(Target(name, float(value), limit, at_least=True))

    def compare(self, name: str, above: Sequence[float], below: Sequence[float], limit: Optional[float]) -> None:
        """Notes how many times `below` `above` is: one ratio for each repetition, whose two measurements were taken
        next to each other, so that drift meets both; their median has to reach `limit`, where there is one."""
        self.add(f"{name}, pair by pair", "ratio", [a / b for a, b in zip(above, below)])
        if limit is not None:
            self.at_least(f"{name}, median of pairs", self.series[-1].median, limit)

    def to_json(self) -> Dict[str, Any]:
        return {
            "series": [series.to_json() for series in self.series],
            "targets": [target.to_json() for target in self.targets],
            "notes": self.notes,
            "details": self.details,
            "table": self.table,
        }


# What a part says.


@dataclass(frozen=True)
class Side:
    """A process that makes blocks of steps: `python ARGUMENTS`, which tells by `Turns` when one is done.

    Attributes:
        work: what is counted of a block, e.g. samples; or steps.
        steps: of a block; a side that makes others is no comparison. 0: it does not say.
        copies: processes that do the same at the same time; a block ends when all have done theirs.
        stopped_between: its processes, workers too, stand still by SIGSTOP while others have their turn: nothing is
            loaded ahead in time that is not measured.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    work: float = 1
    steps: int = 0
    copies: int = 1
    python: str = sys.executable
    stopped_between: bool = False


@dataclass(frozen=True)
class Ratio:
    """One side's figure over another's.

    Attributes:
        target: what its median has to reach, or None.
        name: for readers, where it is not made of the sides' names.
        times: what the second one's figure is multiplied by.
    """

    above: str
    below: str
    target: Optional[float] = None
    name: str = ""
    times: float = 1.0


@dataclass(frozen=True)
class Comparison:
    """Sides that do the same work in turn.

    Attributes:
        title: before the name of each side; may be empty.
        unit: of the figures: what is counted, a second; or ms, of a step; functions return their figure.
        sides: processes, or functions that are given the number of the repetition.
        times: blocks of each, or calls.
        starts: how often all processes are started anew: a process is fast or slow as a whole.
        memory: whether the most memory of each start is shown as well.
    """

    title: str
    unit: str
    sides: Mapping[str, Union[Side, Callable[[int], Any]]]
    times: int
    ratios: Sequence[Ratio] = ()
    starts: int = 1
    memory: bool = False

    def measure(self, folder: Path, found: Measured) -> Dict[str, List[float]]:
        """Measures all sides, notes their figures and ratios in `found`, and returns the figures."""
        said = f"{self.title}: " if self.title else ""
        processes = {name: side for name, side in self.sides.items() if isinstance(side, Side)}
        figures = self._of_processes(processes, folder, said, found) if processes else in_turn(self.sides, self.times)
        for name, values in figures.items():
            found.add(said + name, self.unit, values)
        for ratio in self.ratios:
            if ratio.above in figures and ratio.below in figures:
                below = [ratio.times * value for value in figures[ratio.below]]
                name = ratio.name or f"{ratio.above} / {ratio.below}"
                found.compare(said + name, figures[ratio.above], below, ratio.target)
        return figures

    def _of_processes(
        self, sides: Mapping[str, Side], folder: Path, said: str, found: Measured
    ) -> Dict[str, List[float]]:
        blocks: Dict[str, List[Blocks]] = {name: [] for name in sides}
        for _ in range(self.starts):
            for name, one in in_turns(sides, self.times, Path(tempfile.mkdtemp(prefix="start-", dir=folder))).items():
                blocks[name].append(one)
        figures = {}
        for name, side in sides.items():
            seconds = [value for one in blocks[name] for value in one.seconds]
            figures[name] = [1000 * s / side.work if self.unit == "ms" else side.work / s for s in seconds]
            peaks = [one.peak_MiB for one in blocks[name]]
            cpu_s = statistics.median(value for one in blocks[name] for value in one.cpu_s)
            found.details[said + name] = {"cpu_s of a block": round(cpu_s, 3), "most memory, MiB": round(max(peaks))}
            if self.memory:
                found.add(f"{said}{name}, most memory", "MiB", peaks)
        return figures


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Attributes:
        text: for --help.
        measure: what is to be compared, or what was found.
        notes: how it is measured.
        why_not: the reason why it cannot be measured here, or "".
    """

    text: str
    measure: Callable[[Options], Union[Iterator[Comparison], Measured]]
    notes: Sequence[str] = ()
    why_not: Callable[[Options], str] = lambda _: ""

    def __call__(self, options: Options) -> Measured:
        given = self.measure(options)
        found = given if isinstance(given, Measured) else Measured()
        for number, comparison in enumerate(() if isinstance(given, Measured) else given):
            (options.work / f"comparison{number}").mkdir()
            comparison.measure(options.work / f"comparison{number}", found)
        found.notes = [*self.notes, *found.notes]
        return found


# Environments and processes.


def untouched_environment() -> Dict[str, str]:
    """The caller's own: mxtrain has to tune the process itself."""
    return _with_path(os.environ)


def installed_environment(checkout: Path, bytecode: Path) -> Dict[str, str]:
    """Returns the environment of an installed copy: the bytecode of a checkout is compiled once, and kept elsewhere."""
    environment = {**untouched_environment(), "PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def tuned_environment(num_devices: int = 1) -> Dict[str, str]:
    """Returns the environment of `runtime=auto`: the caller's settings and, for the rest, the choices of mxtrain."""
    from mxtrain.runtime import Runtime
    from mxtrain.runtime.apply import apply

    environment = untouched_environment()
    apply(Runtime(), num_devices=num_devices, environ=environment)
    return environment


def default_environment() -> Dict[str, str]:
    """Returns the environment of MXNet without settings."""
    return {name: value for name, value in _with_path(os.environ).items() if not name.startswith(TUNING)}


def same_threads_environment() -> Dict[str, str]:
    """Returns an environment with the threads of mxtrain and no other choice of it, for other libraries."""
    return {**default_environment(), "OMP_NUM_THREADS": tuned_environment()["OMP_NUM_THREADS"]}


def tuning_of(environment: Mapping[str, str]) -> Dict[str, str]:
    """The variables of an environment that tune something."""
    return {name: environment[name] for name in sorted(environment) if name.startswith(TUNING)}


def _with_path(environment: Mapping[str, str]) -> Dict[str, str]:
    path = [str(ROOT / "scripts"), str(ROOT), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(part for part in path if part))}


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    exit_codes: Optional[Sequence[int]] = (0,),
    python: str = sys.executable,
    timeout_s: float = TIMEOUT_S,
    before: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs `BEFORE python ARGUMENTS` in `folder` to its end; `exit_codes=None` takes any.

    Raises:
        ProcessFailed: it ended with another exit code; the message holds the end of what it printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [*before, python, *arguments],
        env=dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except BaseException:
        # Its own children, too: a DataLoader's workers, the runs of a kill sweep.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if exit_codes is not None and done.returncode not in exit_codes:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ProcessFailed(f"python {' '.join(arguments)}: exit code {done.returncode}\n{tail}")
    return done


def call_of(function: str, block_steps: int, arguments: Sequence[Any]) -> List[str]:
    """Arguments of `python` that call `module:function` of bench_parts; see turn.py."""
    return ["-m", "bench_parts.turn", function, str(block_steps), json.dumps(list(arguments), default=str)]


def ask(
    function: str, *arguments: Any, environment: Mapping[str, str], folder: Path, python: str = sys.executable
) -> Any:
    """Returns the result of `module:function` of bench_parts, computed in a process of its own."""
    done = run(call_of(function, 0, arguments), environment, folder, python=python)
    return json.loads(done.stdout.splitlines()[-1])


def side_of(
    function: str, steps: int, *arguments: Any, environment: Mapping[str, str], work: float = 1, **options: Any
) -> Side:
    """The side that `module:function` of bench_parts prepares; see turn.py."""
    return Side(call_of(function, steps, arguments), environment, work, steps, **options)


def mxtrain_arguments(overrides: Sequence[str], run_dir: Union[str, Path] = "run") -> List[str]:
    """Returns the arguments of `python` that train as a user would."""
    return ["-m", "mxtrain", f"hydra.run.dir={run_dir}", *overrides]


def callback(name: str, **arguments: Any) -> List[str]:
    """Overrides that add a callback of callbacks.py to a run."""
    target = f"+callback.{name}._target_=bench_parts.callbacks.{name}"
    return [target, *(f"+callback.{name}.{key}={value}" for key, value in arguments.items())]


def mxtrain_side(
    overrides: Sequence[str], steps: int, work: float, environment: Optional[Mapping[str, str]] = None, **options: Any
) -> Side:
    """A run of `python -m mxtrain`, with every default callback and logger."""
    given = [*overrides, *callback("Blocks", block_steps=steps), f"trainer.log_interval={steps}"]
    return Side(mxtrain_arguments(given), {**untouched_environment(), **(environment or {})}, work, steps, **options)


def train(
    overrides: Sequence[str],
    folder: Path,
    exit_codes: Sequence[int] = (0,),
    environment: Optional[Mapping[str, str]] = None,
    before: Sequence[str] = (),
) -> Path:
    """Runs `BEFORE python -m mxtrain OVERRIDES` as a user would, with more variables; returns the run directory."""
    run_dir, given = folder / "run", {**untouched_environment(), **(environment or {})}
    run(mxtrain_arguments(overrides, run_dir), given, folder, exit_codes, before=before)
    return run_dir


def status_of(run_dir: Path) -> Dict[str, Any]:
    """The status.json of a run."""
    found: Dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    return found


def rows_of(run_dir: Path) -> List[Dict[str, Any]]:
    """The rows of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Turns.


def in_turn(sides: Mapping[str, Callable[[int], Any]], repetitions: int) -> Dict[str, List[Any]]:
    """Calls the sides one after the other, again and again: what drifts on the machine meets all of them.

    The order is turned round each time, so that no side always goes first.

    Args:
        sides: name -> measurement; it is given the number of the repetition.
        repetitions: measurements of each side.

    Returns:
        name -> what the measurements returned.
    """
    found: Dict[str, List[Any]] = {name: [] for name in sides}
    for number in range(repetitions):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            value = sides[name](number)
            found[name].append(value)
            say(f"  {number + 1}/{repetitions} {name}: {f'{value:.4g}' if isinstance(value, float) else value}")
    return found


@dataclass
class Blocks:
    """Measurements of the blocks of a side.

    Attributes:
        seconds: of each.
        cpu_s: of the processor, in user and system mode, all processes and threads of the side together.
        peak_MiB: the most memory of all blocks; what further processes share with the first counts once.
    """

    seconds: List[float] = field(default_factory=list)
    cpu_s: List[float] = field(default_factory=list)
    peak_MiB: float = 0.0


def in_turns(sides: Mapping[str, Side], blocks: int, folder: Path) -> Dict[str, Blocks]:
    """Measures blocks of each side in turns; the first two of each do not count.

    Raises:
        ProcessFailed: one ended early, whose message holds the end of what it printed; or a block had other steps than
            it should.
    """
    found = {name: Blocks() for name in sides}
    with ExitStack() as stack:
        players = {}
        # One after the other: who starts beside others waits for cores, and its threads would sleep for seconds after.
        for name, side in sides.items():
            players[name] = [stack.enter_context(_Player(name, side, folder)) for _ in range(side.copies)]
            for player in players[name]:
                player.wait()
        for number in range(-1, blocks):
            for name in list(players) if number % 2 == 0 else reversed(list(players)):
                time.sleep(REST_S)
                used_s = -sum(player.cpu_s() for player in players[name])
                for player in players[name]:
                    player.begin()
                told = [player.wait() for player in players[name]]
                if number >= 0:
                    found[name].seconds.append(max(seconds for seconds, _ in told))
                    found[name].cpu_s.append(used_s + sum(player.cpu_s() for player in players[name]))
                    if sides[name].steps and {steps for _, steps in told} != {sides[name].steps}:
                        raise ProcessFailed(f"{name}: a block of {sides[name].steps} steps had {told[0][1]}")
        for name, processes in players.items():
            found[name].peak_MiB = sum(player.peak_MiB for player in processes)
            say(f"  {name}: {' '.join(f'{value:.3f}' for value in found[name].seconds)} s a block")
    return found


class _Player:
    """A running side."""

    def __init__(self, name: str, side: Side, folder: Path):
        self._name, self._side = name, side
        self._folder = Path(tempfile.mkdtemp(prefix="side-", dir=folder))

    def __enter__(self) -> _Player:
        # A socket's path must be short.
        self._socket_folder = tempfile.TemporaryDirectory(prefix="turns-")
        path = os.path.join(self._socket_folder.name, "s")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen(1)
        self._log = open(self._folder / "log", "w+b")
        self._process = subprocess.Popen(
            [self._side.python, *self._side.arguments],
            env={**self._side.environment, SOCKET: path},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._stream: Any = None
        self._others_MiB = 0.0
        return self

    def __exit__(self, *exception: Any) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._stream is not None:
            self._stream.close()
            self._connection.close()
        self._server.close()
        self._log.close()
        self._socket_folder.cleanup()

    @property
    def peak_MiB(self) -> float:
        """The most memory that it had so far (VmHWM), and the most that its further processes had for themselves alone
        at the end of a block: what they share with it counts once."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return _sum_MiB(status, "VmHWM") + self._others_MiB

    def cpu_s(self) -> float:
        """Seconds of the processor so far, of all its processes."""
        ticks = 0
        for path in self._processes():
            with suppress(OSError):  # it may have ended
                ticks += sum(int(word) for word in (path / "stat").read_text().rpartition(")")[2].split()[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _processes(self) -> Iterator[Path]:
        """Folders in /proc of its group: it, and a loader's workers."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getpgid(int(path.name)) == self._process.pid:
                    yield path

    def _note_memory(self) -> None:
        found = 0.0
        for path in self._processes():
            with suppress(OSError):
                if int(path.name) != self._process.pid:
                    found += _sum_MiB((path / "smaps_rollup").read_text(), "Private_")
        self._others_MiB = max(self._others_MiB, found)

    def wait(self) -> Tuple[float, int]:
        """Seconds and steps of the block that it has ended."""
        deadline = time.monotonic() + BLOCK_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self._stream is None:
                    self._server.settimeout(1.0)
                    self._connection, _ = self._server.accept()
                    self._connection.settimeout(BLOCK_S)
                    self._stream = self._connection.makefile("r")
                word = self._stream.readline()
                if word:
                    self._signal(signal.SIGSTOP)
                    self._note_memory()
                    seconds, steps = word.split()
                    return float(seconds), int(steps)
            except socket.timeout:
                continue
            except OSError:
                break
        self._log.seek(0)
        tail = "\n".join(self._log.read().decode(errors="replace").splitlines()[-15:])
        raise ProcessFailed(f"{self._name}: exit code {self._process.poll()}\n{tail}")

    def _signal(self, number: int) -> None:
        if self._side.stopped_between:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def begin(self) -> None:
        """Lets it make one block."""
        self._signal(signal.SIGCONT)
        with suppress(OSError):  # it died: `wait` says how
            self._connection.sendall(b"g")


def _sum_MiB(text: str, begin: str) -> float:
    """The sum of the lines of a file in /proc whose names begin so."""
    return sum(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(begin))
