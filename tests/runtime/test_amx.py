from __future__ import annotations

from pathlib import Path

import pytest

from mxtrain.runtime.amx import cpu_flags, has_amx, has_fast_bfloat16, request_amx
from mxtrain.runtime.probing import run_probe


def test_flags_of_a_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 amx_tile amx_bf16\nprocessor\t: 1\nflags\t: fpu\n")
    assert cpu_flags(cpuinfo) == {"fpu", "avx2", "amx_tile", "amx_bf16"}
    assert has_amx(cpu_flags(cpuinfo))


def test_no_cpuinfo_is_no_flags(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path / "absent") == frozenset()


@pytest.mark.parametrize("flags", ["amx_tile", "amx_bf16", "avx512_bf16"])
def test_amx_needs_tiles_and_bfloat16(flags: str) -> None:
    assert not has_amx(frozenset({flags}))


@pytest.mark.parametrize(
    "vendor, flags, fast",
    [
        ("AuthenticAMD", "avx512f avx512_bf16", True),
        ("AuthenticAMD", "avx512f", False),
        ("GenuineIntel", "avx512f avx512_bf16", False),
    ],
)
def test_amds_avx512_is_faster_in_bfloat16(tmp_path: Path, vendor: str, flags: str, fast: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n")
    assert has_fast_bfloat16(cpuinfo) is fast


def test_kernel_is_not_asked_without_the_instructions(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t: fpu avx2\n")
    assert request_amx(cpuinfo) is False


@pytest.mark.skipif(not has_amx(cpu_flags()), reason="this processor has no AMX")
def test_bfloat16_with_amx_runs_and_is_right() -> None:
    """In a process of its own: a wrong decision ends it with an illegal instruction."""
    result = run_probe(120)
    assert result.cause == "" and result.found["bfloat16"] is True
