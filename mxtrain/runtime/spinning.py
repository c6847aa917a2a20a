"""Lets idle OpenMP threads spin for a moment before they sleep, but only while the cores are free.

    apply sets GOMP_SPINCOUNT -> MXNet's import loads GNU OpenMP -> start: every half second, a thread checks if this
                                   process's threads wait for cores, and engages or releases the limiter

Waking a sleeping thread takes as long as a small operator, and a step has hundreds of operators, so spinning is faster.
But if two runs spin on the same cores, each wastes its time slices waiting for threads that the other one displaces.
Measured: with spinning, a step of ResNet-20 (batch 64) is 1.23 times as fast, in bfloat16 1.31 times. Two small runs at
once do not finish 1,500 steps in 80 s without the limiter, and reach 3,000 samples/s with it.

The limiter: GNU OpenMP does not spin while the process has more OpenMP threads than cores (with
OMP_WAIT_POLICY=passive; otherwise it hardly spins). So a sleeping team of (cores + 1) threads switches spinning off.

Sources: GCC's libgomp manual, GOMP_SPINCOUNT; Linux, Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Dict, Optional, Tuple

from mxtrain.runtime import preloaded

VARIABLE = "GOMP_SPINCOUNT"
SPINS = 100_000
"""Iterations: about a millisecond. No value from 30,000 to 1,000,000 was better for all networks."""
TASKS = Path("/proc/self/task")
PERIOD_S = 0.5
CONTENDED, CALM = 0.4, 0.3
"""Fraction of waiting in the time in which threads ran or waited for a core: cores are contended above the first value
and free below the second. Two equal runs measure 0.5; one run of a very small network measures up to 0.3."""
MIN_CALM_S, MAX_PATIENCE_S = 1.0, 64.0
"""Seconds without contention before threads may spin: at first, and after repeated contention."""
WARN_AFTER_S = 30.0
"""Seconds of uninterrupted contention after which a warning is logged."""

_LOG = logging.getLogger(__name__)


def can_watch(tasks: Path = TASKS) -> bool:
    """Returns True if the kernel reports how long threads wait for cores."""
    return sum(_thread_times(tasks).get(threading.get_native_id(), (0, 0))) > 0


def start() -> None:
    """Lets OpenMP threads spin while the cores are free, until the process ends. Must be called after MXNet's import.

    Does nothing if the kernel does not report waiting times, or MXNet uses another OpenMP than GNU's; nor in a fork
    server, whose forks call it.
    """
    if preloaded.serves_forks() or not can_watch():
        return
    try:
        # RTLD_NOLOAD: a second OpenMP would have threads of its own, and limiting those would change nothing.
        limiter = SpinLimiter(ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW))
    except OSError:
        return
    limiter.engage()  # threads may only spin after the first calm period
    threading.Thread(target=_watch, args=(limiter,), name="mxtrain-spinning", daemon=True).start()


def _watch(limiter: SpinLimiter) -> None:
    monitor, previous, has_warned = ContentionMonitor(), _thread_times(TASKS), False
    while True:
        time.sleep(PERIOD_S)
        times = _thread_times(TASKS)
        # Threads without an earlier value are skipped: they may be old ones that could not be read the last time, and
        # their totals since the start would count as one period.
        common = [task for task in times if task in previous]
        ran_s, waited_s = (sum(times[task][i] - previous[task][i] for task in common) / 1e9 for i in (0, 1))
        previous = times
        may_spin = monitor.may_spin(ran_s, waited_s, PERIOD_S)
        if may_spin and limiter.is_engaged:
            limiter.release()
        elif not may_spin and not limiter.is_engaged:
            limiter.engage()
        if monitor.contended_s >= WARN_AFTER_S and not has_warned:
            has_warned = True
            _LOG.warning(
                "This run's threads wait for a core about as long as they compute: something else wants the same "
                "cores. Runs side by side are faster with a core each (runtime.threads=1)."
            )


def _thread_times(tasks: Path) -> Dict[int, Tuple[int, int]]:
    """Returns thread id -> (ns of running, ns of waiting for a core). Empty if the kernel does not report them."""
    times = {}
    with suppress(OSError):  # the folder does not exist, or no file can be opened
        for name in os.listdir(tasks):
            with suppress(OSError, ValueError):  # the thread has ended, or the kernel has no schedstat
                ran, waited, _ = (tasks / name / "schedstat").read_text().split()
                times[int(name)] = (int(ran), int(waited))
    return times


class ContentionMonitor:
    """Decides after each period if threads may spin. Initially they may not.

    Each time that spinning meets contention, the calm time that is required before the next attempt doubles.

    Attributes:
        contended_s: length of the current uninterrupted contention, in seconds.
    """

    def __init__(self) -> None:
        self.contended_s = 0.0
        self._spin = False
        self._calm_s = 0.0
        self._patience_s = MIN_CALM_S

    def may_spin(self, ran_s: float, waited_s: float, period_s: float) -> bool:
        """Returns True if threads may spin from now on.

        Args:
            ran_s: seconds that all threads together ran in the last period.
            waited_s: seconds that they waited for a core.
            period_s: length of the period in seconds.
        """
        if ran_s + waited_s < 0.1 * period_s:
            return self._spin  # too idle to monitor
        share = waited_s / (ran_s + waited_s)
        self.contended_s = self.contended_s + period_s if share > CONTENDED else 0.0
        if self._spin and share > CONTENDED:
            self._spin, self._calm_s = False, 0.0
            # The pause doubles, because with a steady neighbour every attempt costs both runs half a second.
            self._patience_s = min(2 * self._patience_s, MAX_PATIENCE_S)
        elif not self._spin:
            self._calm_s = self._calm_s + period_s if share < CALM else 0.0
            self._spin = self._calm_s >= self._patience_s
        return self._spin


class SpinLimiter:
    """Prevents the threads of GNU OpenMP from spinning while it is engaged.

    Args:
        gomp: the loaded GNU OpenMP library.
    """

    def __init__(self, gomp: ctypes.CDLL):
        self._parallel = gomp.GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None
        # The team's threads call this: a C function without side effects, since a Python callback would take the GIL.
        self._no_op = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)
        self._release: Optional[threading.Event] = None

    @property
    def is_engaged(self) -> bool:
        return self._release is not None

    def engage(self) -> None:
        """Creates the team of threads; returns when it exists."""
        release, created = threading.Event(), threading.Event()
        threading.Thread(target=self._keep_team, args=(release, created), name="mxtrain-limiter", daemon=True).start()
        # A team that comes late would let threads spin although the limiter counts as engaged.
        created.wait()
        self._release = release

    def release(self) -> None:
        """Lets the team end. It ends shortly after, together with the thread that created it."""
        if self._release is not None:
            self._release.set()
        self._release = None

    def _keep_team(self, release: threading.Event, created: threading.Event) -> None:
        self._parallel(self._no_op, None, len(os.sched_getaffinity(0)) + 1, 0)
        # GNU OpenMP keeps the team, asleep, as long as the thread that created it lives.
        created.set()
        release.wait()
