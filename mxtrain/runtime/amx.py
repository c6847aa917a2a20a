"""Requests permission to use AMX, the matrix instructions of newer Intel CPUs.

Linux grants the large tile registers only on request. A process that uses them without permission dies of an illegal
instruction, so oneDNN may be allowed to use AMX only after `request_amx` has returned True.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from pathlib import Path
from typing import FrozenSet

CPUINFO = Path("/proc/cpuinfo")
ISA = "DNNL_MAX_CPU_ISA"
"""Environment variable that limits the instructions of oneDNN, which uses AMX only if the value names it or is ALL."""

_SYS_ARCH_PRCTL = 158  # x86-64
_ARCH_GET_XCOMP_PERM = 0x1022
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def cpu_flags(cpuinfo: Path = CPUINFO) -> FrozenSet[str]:
    """Returns the instruction sets of the first CPU as the kernel reports them, e.g. avx2; empty if unreadable."""
    return frozenset(_field("flags", cpuinfo).split())


@functools.cache  # called for each layer of a network
def _field(name: str, cpuinfo: Path) -> str:
    """Returns the value of a field for the first CPU; "" if it is missing or the file cannot be read."""
    try:
        with cpuinfo.open() as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return ""


def has_amx(flags: FrozenSet[str]) -> bool:
    """Returns True if the CPU has the AMX instructions that oneDNN's bfloat16 kernels use."""
    return {"amx_tile", "amx_bf16"} <= flags and platform.machine() == "x86_64"


def uses_amx() -> bool:
    """Returns True if oneDNN uses AMX in this process, as `apply` decided."""
    isa = os.environ.get(ISA, "").upper()
    return ("AMX" in isa or isa == "ALL") and has_amx(cpu_flags())


def has_fast_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Returns True if AVX-512 multiplies bfloat16 faster than float32.

    This is so on AMD CPUs. On Intel CPUs the bfloat16 instruction does twice the work in twice the time, so only AMX
    is faster there.
    """
    return "avx512_bf16" in cpu_flags(cpuinfo) and _field("vendor_id", cpuinfo) == "AuthenticAMD"


def computes_bfloat16(flags: FrozenSet[str]) -> bool:
    """Returns True if oneDNN 2.4 has bfloat16 kernels for the CPU; it emulates missing bfloat16 instructions."""
    return {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags


def request_amx(cpuinfo: Path = CPUINFO) -> bool:
    """Requests the tile registers from the kernel, for this process and its children.

    Returns:
        True if AMX can be used from now on; False if the CPU lacks it or the kernel refuses.

    Source: Linux, Documentation/arch/x86/xstate.rst.
    """
    if not has_amx(cpu_flags(cpuinfo)):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    granted = ctypes.c_uint64(0)
    if libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) != 0:
        return False
    if libc.syscall(_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_PERM, ctypes.byref(granted)) != 0:
        return False
    return bool(granted.value >> _XFEATURE_XTILEDATA & 1)
