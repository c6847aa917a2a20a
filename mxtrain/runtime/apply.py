"""Sets the environment variables that MXNet reads at import, and reports each setting with its reason."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import FrozenSet, Iterator, List, Literal, Mapping, MutableMapping, NamedTuple, Tuple

from mxtrain.engine import native
from mxtrain.runtime import spinning
from mxtrain.runtime.amx import ISA, cpu_flags, has_amx, has_fast_bfloat16, request_amx
from mxtrain.runtime.cores import cgroup_quota, usable_cores
from mxtrain.runtime.preloaded import is_mxnet_loaded
from mxtrain.runtime.slow_variables import slow_variables
from mxtrain.runtime.spec import Runtime

SET_BY_MXTRAIN = "MXTRAIN_RUNTIME_SET"
"""Variable with the list of variables that mxtrain has set, as `NAME=value` words. With it, a child process
distinguishes them from variables of the user."""
THREADS, WAIT_POLICY = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"
FROM_CONFIGURATION = "given in the configuration"
OPENBLAS_CORE = "OPENBLAS_CORETYPE"
_KERNELS = (
    ("SkylakeX", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma"})),
    ("Haswell", frozenset({"avx2", "fma"})),
)
"""Kernels of OpenBLAS, best first, and the instruction sets that they need. OpenBLAS computes the matrix products for
which MXNet does not use oneDNN: `dot`, `batch_dot`, attention."""
ISA_WITH_AMX = "AVX512_CORE_AMX"
ISA_WITHOUT_AMX = "AVX512_CORE_BF16"
BFLOAT16_SLOW = "bfloat16 is then no faster than float32 (amp=off)"
BFLOAT16_FAST = "its AVX-512 multiplies bfloat16 faster than float32, too"


@dataclass(frozen=True)
class Setting:
    """An environment variable: its value, the reason for it, and who set it."""

    variable: str
    value: str
    why: str
    source: Literal["set", "user", "too late", "unset"]
    """set: mxtrain has set it; user: the user's value is kept; too late: MXNet was imported before and uses another
    value; unset: it is not set, for the reason in `why`."""


class Desired(NamedTuple):
    """Desired value of a variable. If `is_given`, it is from the configuration and overrides the user's environment."""

    value: str
    why: str
    is_given: bool = False


@dataclass(frozen=True)
class RuntimeReport:
    """The result of `apply`."""

    settings: Tuple[Setting, ...]
    cores: int
    """Cores that the process may use."""
    threads: str
    """OpenMP threads of each CPU device, as MXNet will read them; empty if not set."""
    amx: bool
    """True if oneDNN may use AMX."""
    fast_bfloat16: bool
    """True if oneDNN may use instructions that multiply bfloat16 faster than float32; checked only on request."""
    slow: Tuple[str, ...] = ()
    """Warnings about variables of the user that slow training down."""

    def summary(self) -> str:
        """Returns a short summary; `lines` has the details."""
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        threads = f"{self.threads} thread{'s' * (self.threads != '1')} on {cores}" if self.threads else cores
        num_changed = sum(item.source == "set" for item in self.settings)
        num_kept = sum(item.source == "user" for item in self.settings)
        clauses = [f"{num_changed} variable{'s' * (num_changed != 1)} set for this machine"] if num_changed else []
        clauses += [f"{num_kept} of yours kept"] if num_kept else []
        return f"{threads}; {', '.join(clauses)} (meta.json and `doctor` list them)" if clauses else threads

    def lines(self) -> List[str]:
        """Returns one sentence per variable, for a log."""
        marks = {"set": "", "user": " (yours, kept)", "too late": " (too late: MXNet was imported before)"}
        return [
            f"{item.variable} is left alone: {item.why}"
            if item.source == "unset"
            else f"{item.variable}={item.value}{marks[item.source]}: {item.why}"
            for item in self.settings
        ]


def apply(
    runtime: Runtime,
    *,
    num_devices: int = 1,
    bfloat16: bool = False,
    one_by_one: bool = False,
    environ: MutableMapping[str, str] = os.environ,
) -> RuntimeReport:
    """Applies the runtime settings. Must be called before anything imports MXNet or NumPy, which read them only once.

    Args:
        runtime: settings of the group `runtime`.
        num_devices: number of CPU devices of this process; 1 if it computes on GPUs.
        bfloat16: True if the network computes in bfloat16, the type that AMX accelerates.
        one_by_one: True to pass operators to the engine one by one, so that a profile shows the time of each.
        environ: environment to change.

    Returns:
        A report of variables that were set, that the user had set, and that came too late.
    """
    cores = usable_cores()
    imported = is_mxnet_loaded()
    if not imported:
        _remove_own_variables(environ)
    user_variables = {
        name: value
        for name, value in environ.items()
        if name not in runtime.env and not is_set_by_mxtrain(name, environ)
    }
    if runtime.threads != "auto":
        user_variables.pop(THREADS, None)  # the configuration replaces this value, so it needs no warning
    desired = dict(
        _desired_variables(runtime, num_devices=num_devices, cores=cores, one_by_one=one_by_one, environ=environ)
    )
    settings = [_set(name, value, imported, environ) for name, value in desired.items()]
    amx = _decide_amx(runtime, bfloat16, imported, environ, settings)
    isa = environ.get(ISA, "ALL").upper()
    fast = amx or (bfloat16 and any(word in isa for word in ("BF16", "AMX", "ALL")) and has_fast_bfloat16())
    threads = environ.get(THREADS, "")
    return RuntimeReport(
        tuple(settings),
        cores=cores,
        threads=threads,
        amx=amx,
        fast_bfloat16=fast,
        slow=tuple(slow_variables(user_variables, num_devices, cores)),
    )


def _desired_variables(
    runtime: Runtime, *, num_devices: int, cores: int, one_by_one: bool, environ: Mapping[str, str]
) -> Iterator[Tuple[str, Desired]]:
    """Yields (variable, desired value) in the order of the report; a later value replaces an earlier one."""
    auto = runtime.mode == "auto"
    threads = max(1, cores // num_devices) if runtime.threads == "auto" else runtime.threads
    if runtime.threads != "auto":
        suffix = f": more than there are cores ({cores}), which slows it down" if threads * num_devices > cores else ""
        yield THREADS, Desired(str(threads), FROM_CONFIGURATION + suffix, is_given=True)
    elif auto:
        why = f"{cores} usable cores / {num_devices} CPU devices" if num_devices > 1 else f"{cores} usable cores"
        yield THREADS, Desired(str(threads), f"{why}; MXNet alone would take half the cores")
        user_threads = environ.get(THREADS, "")
        threads = int(user_threads) if user_threads.isdecimal() else threads
    if auto:
        # Two runs of LeNet on two cores reached 90 samples/s each with spinning threads, and 3,800 with sleeping ones.
        yield WAIT_POLICY, Desired("passive", "threads that wait for each other sleep, so that others have the cores")
        is_set_by_user = WAIT_POLICY in environ and not is_set_by_mxtrain(WAIT_POLICY, environ)
        if WAIT_POLICY not in runtime.env and not is_set_by_user and 1 < threads <= cores // num_devices:
            yield from _spinning()
        core = openblas_core(cpu_flags())
        if core:
            why = "OpenBLAS does not know newer processors and takes its slowest kernels for them"
            yield OPENBLAS_CORE, Desired(core, why)
    if runtime.cpu_temp_copy != "auto":
        yield "MXNET_CPU_TEMP_COPY", Desired(str(runtime.cpu_temp_copy), FROM_CONFIGURATION, is_given=True)
    elif auto and num_devices > 1:
        why = "CPU devices share these work spaces and wait for each other at MXNet's 4"
        yield "MXNET_CPU_TEMP_COPY", Desired("64", why)
    if runtime.cpu_workers != "auto":
        yield "MXNET_CPU_WORKER_NTHREADS", Desired(str(runtime.cpu_workers), FROM_CONFIGURATION, is_given=True)
    if runtime.bulk_size != "auto":
        yield "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", Desired(str(runtime.bulk_size), FROM_CONFIGURATION, is_given=True)
    elif one_by_one:
        yield "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", Desired("0", "trainer.profile=true shows each operator's time")
    if runtime.operators is False:
        yield native.VARIABLE, Desired(native.OFF, f"{FROM_CONFIGURATION}: MXNet's operators only", is_given=True)
    elif runtime.operators == "auto" and not auto:
        yield native.VARIABLE, Desired(native.OFF, "runtime.mode=manual: MXNet's operators only")
    if runtime.tf32 is False:
        reason = "float32 products on GPUs keep all 23 bits of mantissa"
        yield "NVIDIA_TF32_OVERRIDE", Desired("0", reason, is_given=True)
    if runtime.deterministic:
        why = f"{FROM_CONFIGURATION} (runtime.deterministic)"
        yield "MXNET_ENFORCE_DETERMINISM", Desired("1", why, is_given=True)
        yield "MXNET_CUDNN_AUTOTUNE_DEFAULT", Desired("0", why, is_given=True)
    for name, value in runtime.env.items():
        yield name, Desired(str(value), f"{FROM_CONFIGURATION} (runtime.env)", is_given=True)


def _spinning() -> Iterator[Tuple[str, Desired]]:
    """Yields the variables that let idle threads spin for a moment while the cores are free; see `spinning`."""
    quota = cgroup_quota()
    is_limited = quota is not None and quota < len(os.sched_getaffinity(0))  # spinning would use up the CPU quota
    if not is_limited and spinning.can_watch():
        why = "but they spin for a millisecond first, while nothing else wants the cores"
        # 100,000 spins made ResNet-20's step 1.23 times as fast; 30,000 and 1,000,000 were worse for some networks.
        yield spinning.VARIABLE, Desired(str(spinning.SPINS), why)
        # The largest int: MXNet then copies no array, as for checkpoints, with an OpenMP team of the main thread. With
        # such a team, GNU OpenMP would count more threads than cores, and stop spinning.
        yield "MXNET_CPU_PARALLEL_SIZE", Desired("2147483647", "with a team for copies they could not spin")


def _remove_own_variables(environ: MutableMapping[str, str]) -> None:
    """Removes variables that mxtrain set, here or in a parent process, unless their values have changed since."""
    for word in environ.pop(SET_BY_MXTRAIN, "").split():
        name, _, value = word.partition("=")
        if environ.get(name) == value:
            del environ[name]


def is_set_by_mxtrain(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns True if a variable has the value that mxtrain gave it, in this process or in a parent."""
    return f"{name}={environ.get(name)}" in environ.get(SET_BY_MXTRAIN, "").split()


def lets_threads_spin(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns True if mxtrain, not the user, set the time that threads spin."""
    return is_set_by_mxtrain(spinning.VARIABLE, environ) and environ[spinning.VARIABLE] == str(spinning.SPINS)


def _set(name: str, desired: Desired, imported: bool, environ: MutableMapping[str, str]) -> Setting:
    """Sets a variable to its desired value, unless the user's value has precedence or MXNet is imported already."""
    value, why, is_given = desired
    present = environ.get(name)
    is_ours = is_set_by_mxtrain(name, environ)
    if present == value and (imported or is_ours):
        return Setting(name, value, why, "set" if is_ours else "user")
    is_users = present is not None and not is_ours
    # The user's environment yields only to what is written in the configuration, never to a choice of "auto".
    if is_users and (present == value or not is_given):
        return Setting(name, str(present), f"mxtrain would set {value}: {why}", "user")
    if imported:
        return Setting(name, value, why, "too late")
    return _put(name, value, f"{why}, instead of the environment's {present}" if is_users else why, environ)


def _put(name: str, value: str, why: str, environ: MutableMapping[str, str]) -> Setting:
    # Noted in the environment, because child processes must not take the variable for the user's choice.
    environ[name] = value
    environ[SET_BY_MXTRAIN] = f"{environ.get(SET_BY_MXTRAIN, '')} {name}={value}".strip()
    return Setting(name, value, why, "set")


def _decide_amx(
    runtime: Runtime, bfloat16: bool, imported: bool, environ: MutableMapping[str, str], settings: List[Setting]
) -> bool:
    """Decides on AMX and adds the decision to `settings`. Returns True if oneDNN may use AMX."""
    present = environ.get(ISA)
    if present is not None:
        return _keep_user_isa(present, environ, settings)
    is_requested = runtime.amx is True or (runtime.amx == "auto" and runtime.mode == "auto" and bfloat16)
    if not is_requested:
        return False
    if not has_amx(cpu_flags()):
        if bfloat16:
            settings.append(
                Setting(
                    ISA,
                    "",
                    f"this processor has no AMX; {BFLOAT16_FAST if has_fast_bfloat16() else BFLOAT16_SLOW}",
                    "unset",
                )
            )
        elif runtime.amx is True:
            settings.append(Setting(ISA, "", "runtime.amx=true, but this processor has no AMX", "unset"))
        return False
    if imported:
        settings.append(Setting(ISA, ISA_WITH_AMX, "AMX for bfloat16", "too late"))
        return False
    if not request_amx():
        settings.append(
            Setting(ISA, "", f"the kernel refused AMX to this process, so it stays off; {BFLOAT16_SLOW}", "unset")
        )
        return False
    # The variable is set last: with it, but without the permission, the process dies of an illegal instruction.
    settings.append(_put(ISA, ISA_WITH_AMX, "AMX for bfloat16; the kernel granted its registers", environ))
    return True


def _keep_user_isa(present: str, environ: MutableMapping[str, str], settings: List[Setting]) -> bool:
    """Keeps the user's instruction set, unless the process would die of an illegal instruction with it."""
    if "AMX" not in present.upper() and present.upper() != "ALL":
        settings.append(Setting(ISA, present, "the instruction set is yours to choose", "user"))
        return False
    # Without the hardware oneDNN ignores the value, so the user's variable does no harm.
    if request_amx() or not has_amx(cpu_flags()):
        settings.append(Setting(ISA, present, "the instruction set is yours to choose", "user"))
        return has_amx(cpu_flags())
    why = f"{present} would end in an illegal instruction: the kernel refused AMX to this process"
    settings.append(_put(ISA, ISA_WITHOUT_AMX, why, environ))
    return False


def openblas_core(flags: FrozenSet[str]) -> str:
    """Returns the name of the best OpenBLAS kernels for these instruction sets; "" leaves the choice to OpenBLAS.

    OpenBLAS chooses kernels by the CPU's model number. The version in MXNet's wheel, 0.3.13, does not know many newer
    CPUs and selects kernels without AVX for them (Prescott), which are two to three times as slow. If SkylakeX is
    requested, it uses its Haswell kernels, the newest that it was built with.

    Source: OpenBLAS, driver/others/dynamic.c.
    """
    return next((name for name, needed in _KERNELS if needed <= flags), "")
