"""Permission to use AMX, the matrix instructions of newer Intel processors.

Linux hands out the large tile registers only on request. A process that uses them without dies of an illegal
instruction, so oneDNN may be told about AMX only after `request_amx` returned True (notes: Speed, AMX).
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from pathlib import Path
from typing import FrozenSet, Mapping

CPUINFO = Path("/proc/cpuinfo")
ISA = "DNNL_MAX_CPU_ISA"
"""The environment's variable that says which instructions oneDNN may use; AMX only where it names it, or all."""

_SYS_ARCH_PRCTL = 158  # x86-64
_ARCH_GET_XCOMP_PERM = 0x1022
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def cpu_flags(cpuinfo: Path = CPUINFO) -> FrozenSet[str]:
    """The instruction sets that the kernel reports for the first processor, e.g. avx2; empty if it can't be read."""
    return frozenset(_field("flags", cpuinfo).split())


@functools.cache  # asked for each layer
def _field(name: str, cpuinfo: Path) -> str:
    try:
        with cpuinfo.open() as lines:
            for line in lines:
                found, _, value = line.partition(":")
                if found.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return ""


def has_amx(flags: FrozenSet[str]) -> bool:
    """Returns True if the processor has what oneDNN's bfloat16 kernels use."""
    return {"amx_tile", "amx_bf16"} <= flags and platform.machine() == "x86_64"


def uses_amx(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns True if oneDNN uses AMX in this process, as `apply` decided."""
    isa = environ.get(ISA, "").upper()
    return ("AMX" in isa or isa == "ALL") and has_amx(cpu_flags())


def has_fast_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Returns True if AVX-512 multiplies bfloat16 faster than float32. AMD's does; Intel's takes twice as long for
    twice as many, and only AMX is faster there."""
    return "avx512_bf16" in cpu_flags(cpuinfo) and _field("vendor_id", cpuinfo) == "AuthenticAMD"


def computes_bfloat16(flags: FrozenSet[str]) -> bool:
    """Returns True if oneDNN 2.4 has kernels for bfloat16: it emulates what the processor lacks beyond these."""
    return {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags


def request_amx(cpuinfo: Path = CPUINFO) -> bool:
    """Requests the tile registers from the kernel, for this process and its children.

    Returns:
        True where AMX can be used from now on; False where the processor lacks it or the kernel refuses.

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
