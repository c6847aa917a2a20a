from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mxtrain.runtime.huge_pages import is_madvise

TOUCHED = """
import ctypes
from mxtrain.runtime.huge_pages import join_pages
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.memset.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
address = libc.malloc(64 << 20)
libc.memset(address, 7, 64 << 20)
def large():
    return next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHuge")) // 1024
print(large(), join_pages() >> 20, large(), set(ctypes.string_at(address, 64 << 20)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not is_madvise(), reason="this kernel has no large pages on request")
def test_memory_that_is_used_comes_to_lie_in_large_pages() -> None:
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1):
        pytest.skip("Linux before 6.1 joins no pages that are in use")
    done = subprocess.run([sys.executable, "-c", TOUCHED], capture_output=True, text=True, check=True)
    before, joined, after, values = done.stdout.split(maxsplit=3)
    assert int(before) < 8 and int(joined) >= 62 and int(after) >= 60, done.stdout
    assert values.strip() == "{7}"


def test_whether_the_kernel_gives_them(tmp_path) -> None:
    enabled = tmp_path / "enabled"
    assert not is_madvise(enabled)
    for text, expected in (("always [madvise] never", True), ("[always] madvise never", False)):
        enabled.write_text(text)
        assert is_madvise(enabled) is expected
