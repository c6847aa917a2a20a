"""Memory limit of a process: the machine's memory, its container's limit, its own limit."""

import resource

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
