"""Memory limit of a process: the machine's memory, its container's limit, its own limit."""

import resource
import subprocess
import sys

import pytest

from mxtrain.runtime import memory


def test_the_smallest_limit_counts(tmp_path, monkeypatch) -> None:
    machine = memory.usable_memory(tmp_path)
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("max\n")
    assert memory.usable_memory(tmp_path) == machine
    (folder / "memory.max").write_text("5000000\n")
    assert memory.usable_memory(tmp_path) == 5_000_000
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4_000_000, 4_000_000))
    assert memory.usable_memory(tmp_path) == 4_000_000


def test_sizes_are_shown_in_their_unit() -> None:
    assert memory.shown_size(12) == "12 bytes"
    assert memory.shown_size(1.5 * 2**20) == "1.5 MiB"
    assert memory.shown_size(5 * 2**40) == "5,120 GiB"


FRAGMENTED = """
import ctypes, sys
from mxtrain.runtime.memory import resident_memory, return_freed_memory, trim_memory

if sys.argv[1] == "returned":
    return_freed_memory()
if sys.argv[1] == "engine":
    import mxtrain.engine.backend
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
free = lambda address: libc.free(ctypes.c_void_p(address))
free(libc.malloc(16 << 20))  # from now on, glibc takes smaller arrays from its heap
arrays = [libc.malloc(8 << 20) for _ in range(10)]
for array in arrays:
    ctypes.memset(array, 1, 8 << 20)
last = libc.malloc(8 << 20)  # holds the end of the heap
before = resident_memory()
for array in arrays:
    free(array)
if sys.argv[1] == "trimmed":
    trim_memory()
print((before - resident_memory()) >> 20)
"""


@pytest.mark.parametrize(
    "how, least, most", [("kept", 0, 8), ("returned", 72, 88), ("engine", 72, 88), ("trimmed", 72, 88)]
)
def test_freed_arrays_return_to_the_system(how: str, least: int, most: int) -> None:
    """In a process of its own, since the threshold of malloc is that of the process."""
    freed = int(subprocess.run([sys.executable, "-c", FRAGMENTED, how], capture_output=True, text=True).stdout)
    assert least <= freed <= most


def test_the_peak_is_that_of_this_process_alone() -> None:
    """Freed memory counts, and memory of the parent, which `getrusage` counts, does not."""
    ballast = bytearray(100 << 20)
    code = (
        "from mxtrain.runtime.memory import peak_memory\n"
        "before = peak_memory()\n"
        "one = bytearray(200 << 20)\n"
        "del one\n"
        "print(before, peak_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before < 100 << 20 < 200 << 20 <= after, len(ballast)
