"""Arrays of records in files: what was written is read, goes on where it was interrupted, and is never half used."""

from __future__ import annotations

import json
import os
import resource

import numpy as np
import pytest

from mxtrain.data.corpus import shards as module
from mxtrain.data.corpus.shards import (
    JOURNAL,
    ArrayForm,
    DamagedShards,
    ShardWriter,
    open_shards,
)

FORMS = {
    "token": ArrayForm("uint16", (), True),
    "label": ArrayForm("int32"),
    "frame": ArrayForm("float32", (3,), True),
}


def records(first, count):
    """Arguments of `append` for records first, first + 1, ...: as many tokens as their number, half as many frames."""
    numbers = np.arange(first, first + count)
    token = np.concatenate([np.full(n, n) for n in numbers] or [[]])
    frame = np.concatenate([np.full((n // 2, 3), n / 2) for n in numbers] or [np.empty((0, 3))])
    return count, {"token": token, "label": -numbers, "frame": frame}, {"token": numbers, "frame": numbers // 2}


def write(folder, *counts, key="a", facts=None):
    writer = ShardWriter(folder, key, FORMS)
    first = writer.records
    for count in counts:
        writer.append(*records(first, count))
        writer.commit()
        first += count
    if facts is not None:
        writer.finish(facts)
    writer.close()
    return writer


def assert_whole(found, count):
    assert len(found) == count and found.array("label").tolist() == [-n for n in range(count)]
    token, frame = found.ragged("token"), found.ragged("frame")
    for n in range(count):
        assert token.value[token.begin[n] : token.begin[n + 1]].tolist() == [n] * n
        assert frame.value[frame.begin[n] : frame.begin[n + 1]].tolist() == [[n / 2] * 3] * (n // 2)
    assert token.length.tolist() == list(range(count))


def test_shards_are_read_as_written(tmp_path):
    write(tmp_path, 5, 0, 4, facts={"names": ["x"]})
    found = open_shards(tmp_path, "a")
    assert_whole(found, 9)
    assert found.facts == {"names": ["x"]} and found.array("token").dtype == np.uint16
    assert not found.array("token").flags.writeable and found.num_bytes > 100
    assert np.frombuffer(found.read("token", 2, 8), np.uint16).tolist() == [2, 2, 3]


def test_empty_corpus_is_valid(tmp_path):
    write(tmp_path, facts={})
    found = open_shards(tmp_path, "a")
    assert len(found) == 0 and found.array("frame").shape == (0, 3) and found.offsets("token").tolist() == [0]


def test_an_interrupted_writer_continues_behind_the_last_block(tmp_path):
    writer = ShardWriter(tmp_path, "a", FORMS)
    writer.append(*records(0, 3))
    writer.commit()
    writer.append(*records(3, 2))  # and is killed before these are a block
    writer.close()
    assert open_shards(tmp_path, "a") is None
    assert write(tmp_path, 4, facts={}).records == 7
    assert_whole(open_shards(tmp_path, "a"), 7)
    assert not (tmp_path / JOURNAL).exists()


def test_another_key_or_a_torn_journal_starts_again(tmp_path):
    write(tmp_path, 3)
    assert write(tmp_path, 2, key="b").records == 2
    (tmp_path / JOURNAL).write_bytes(b"torn")
    assert write(tmp_path, 2).records == 2
    os.truncate(tmp_path / "label.values", 3)  # less than the journal says
    assert write(tmp_path, 6, facts={}).records == 6
    assert_whole(open_shards(tmp_path, "a"), 6)


@pytest.mark.parametrize("name", ["token.values", "token.begin", "label.values", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "link"])
def test_damage_is_noticed(tmp_path, name, damage):
    write(tmp_path, 9, facts={})
    path = tmp_path / name
    if damage == "flip":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
    elif damage == "cut":
        os.truncate(path, path.stat().st_size - 1)
    else:
        path.rename(tmp_path / "elsewhere")
        if damage == "link":
            path.symlink_to("elsewhere")
    if (name, damage) == ("manifest.json", "remove"):
        assert open_shards(tmp_path, "a") is None
        return
    with pytest.raises(DamagedShards):
        open_shards(tmp_path, "a")


def test_world_writable_files_are_not_used(tmp_path):
    write(tmp_path, 3, facts={})
    (tmp_path / "token.values").chmod(0o666)
    with pytest.raises(DamagedShards, match="others can write"):
        open_shards(tmp_path, "a")


def test_large_files_are_read_again_only_if_they_were_touched(tmp_path, monkeypatch):
    write(tmp_path, 9, facts={})
    monkeypatch.setattr(module, "MAX_REHASHED_BYTES", 0)
    monkeypatch.setattr(module, "_digest_of_next", lambda fd, size: pytest.fail("it was read"))
    assert open_shards(tmp_path, "a") is not None
    monkeypatch.undo()
    monkeypatch.setattr(module, "MAX_REHASHED_BYTES", 0)
    content = (tmp_path / "label.values").read_bytes()
    (tmp_path / "label.values").write_bytes(b"\1" + content[1:])
    with pytest.raises(DamagedShards, match="block 0 of .*label.values"):
        open_shards(tmp_path, "a")


def test_the_manifest_is_plain_json(tmp_path):
    write(tmp_path, 2, facts={"a": 1})
    manifest = json.loads((tmp_path / "manifest.json").read_bytes().split(b"\n", 1)[1])
    assert manifest["records"] == 2 and manifest["arrays"]["frame"] == ["float32", [3], True]


@pytest.mark.slow
def test_arrays_take_no_memory_before_they_are_read(tmp_path):
    writer = ShardWriter(tmp_path, "a", {"x": ArrayForm("uint8", (), True)})
    for _ in range(64):
        writer.append(1, {"x": np.zeros(1 << 20, np.uint8)}, {"x": np.array([1 << 20])})
    writer.finish({})
    writer.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = open_shards(tmp_path, "a")
    assert found.array("x").shape == (64 << 20,)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10
