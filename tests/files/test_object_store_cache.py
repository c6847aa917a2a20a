"""The cache of object stores on the disk, and addresses: without a network."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import logging
import os
import shutil
import sys
import threading
import time
import types
from pathlib import Path
from typing import Callable, Dict, List, Tuple

import pytest

from mxtrain.errors import ConfigError, DataError, with_addresses
from mxtrain.files import durable, regular_files
from mxtrain.files.object_store import content_cache, local_names, reader, store
from mxtrain.files.object_store.address import Address, StoreError, endpoint_of, is_address, parse_address
from mxtrain.files.object_store.content_cache import BLOCK_BYTES, ContentCache
from mxtrain.files.object_store.local_names import LocalNames
from mxtrain.files.object_store.reader import ObjectFile, ObjectReader, StoredObject
from mxtrain.files.object_store.store import Listed
from mxtrain.vision.classification.mnist import Mnist
from mxtrain.workflows.convert_data import ConvertDataSettings, convert_data_of


@pytest.fixture
def cache(tmp_path: Path) -> ContentCache:
    return ContentCache(tmp_path, 100 * 10**6)


class ByteStore:
    """A store in memory, which counts requests."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.requests: List[Tuple[int, int]] = []

    def read(
        self, address: Address, etag: str, begin: int, end: int, keep: Callable[[bytes], None]
    ) -> concurrent.futures.Future:
        self.requests.append((begin, end))
        future: concurrent.futures.Future = concurrent.futures.Future()
        keep(self.content[begin:end])
        future.set_result(self.content[begin:end])
        return future

    def copy_to(self, address: Address, etag: str, size: int, descriptor: int) -> None:
        self.requests.append((0, size))
        os.write(descriptor, self.content)


CONTENT = bytes(os.urandom(1000)) * 3500  # 3.3 blocks


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Tuple[ByteStore, StoredObject]:
    source = ByteStore(CONTENT)
    monkeypatch.setattr(reader, "store_of", lambda scheme: source)
    return source, StoredObject(Address("s3", "bucket", "a.rec"), len(CONTENT), '"1"', "")


@pytest.mark.parametrize(
    "length, position",
    [
        (10, 0),
        (10, BLOCK_BYTES - 5),
        (BLOCK_BYTES, BLOCK_BYTES),
        (BLOCK_BYTES + 2, BLOCK_BYTES - 1),
        (3 * BLOCK_BYTES, 7),
        (50, len(CONTENT) - 10),
        (len(CONTENT), 0),
        (5, len(CONTENT)),
        (0, 3),
    ],
    ids=["begin", "two", "one", "three", "four", "end", "all", "behind", "none"],
)
def test_ranges_equal_those_of_the_object(stored, cache: ContentCache, length: int, position: int) -> None:
    source, one = stored
    for _ in range(2):  # the second time from the disk
        assert ObjectReader(one, cache).read(length, position) == CONTENT[position : position + length]
    assert len(source.requests) == len(set(source.requests))
    assert all(begin % BLOCK_BYTES == 0 and 0 < end - begin <= BLOCK_BYTES for begin, end in source.requests)


def test_random_reads_request_only_their_block_and_sequences_read_ahead(stored, cache: ContentCache) -> None:
    source, one = stored
    backwards = ObjectReader(one, cache)
    backwards.read(10, 3 * BLOCK_BYTES + 5)
    assert source.requests == [(3 * BLOCK_BYTES, len(CONTENT))]
    backwards.read(10, BLOCK_BYTES)
    assert len(source.requests) == 2
    ObjectReader(one, cache).read(10, 0)  # the beginning continues nothing, but is where most sequences start
    assert len(source.requests) == 4


def test_other_content_has_other_names(stored) -> None:
    _, one = stored
    others = [
        StoredObject(one.address, one.size, '"2"', ""),
        StoredObject(one.address, one.size + 1, '"1"', ""),
        StoredObject(one.address, one.size, '"1"', "http://other"),
        StoredObject(Address("gs", "bucket", "a.rec"), one.size, '"1"', ""),
    ]
    assert len({each.cache_name for each in (one, *others)}) == 5


def test_the_open_file_reads_as_a_local_one(stored, cache: ContentCache) -> None:
    _, one = stored
    with ObjectFile(ObjectReader(one, cache)) as file:
        assert file.read(5) == CONTENT[:5] and file.tell() == 5
        assert file.seek(-4, os.SEEK_END) == len(CONTENT) - 4 and file.read() == CONTENT[-4:]
        assert file.seek(2) == 2 and file.seek(3, os.SEEK_CUR) == 5
        with pytest.raises(ValueError, match="negative"):
            file.seek(-1)
        assert os.pread(file.fileno(), 7, 11) == CONTENT[11:18]
        assert os.fstat(file.fileno()).st_size == len(CONTENT)


@pytest.mark.parametrize("size", [0, 1000, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_a_local_copy_is_stored_once(stored, cache: ContentCache, size: int) -> None:
    source, one = stored
    source.content = CONTENT[:size]
    copied = ObjectReader(dataclasses.replace(one, size=size), cache)
    for _ in range(2):
        assert Path(copied.local_copy()).read_bytes() == CONTENT[:size]
    assert cache.used_bytes() == size and len(source.requests) == 1


def test_the_cache_is_not_listed_for_each_copy(stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, one = stored
    counts = []
    used_bytes = ContentCache.used_bytes
    monkeypatch.setattr(ContentCache, "used_bytes", lambda cache: counts.append(1) or used_bytes(cache))
    cache = ContentCache(tmp_path)
    for number in range(10):
        ObjectReader(dataclasses.replace(one, etag=str(number)), cache).local_copy()
    assert len(counts) == 2


@pytest.mark.parametrize(
    "damaged", [lambda content: content[:-1], lambda content: b"x" + content], ids=["short", "long"]
)
def test_a_block_of_another_size_is_read_again(stored, cache: ContentCache, damaged: Callable[[bytes], bytes]) -> None:
    source, one = stored
    ObjectReader(one, cache).read(10, 3 * BLOCK_BYTES)
    (path,) = cache.folder.glob("*/*-3")
    path.write_bytes(damaged(path.read_bytes()))
    assert ObjectReader(one, cache).read(10, 3 * BLOCK_BYTES) == CONTENT[3 * BLOCK_BYTES :][:10]
    assert len(source.requests) == 2


def test_the_cache_keeps_within_its_bound_and_removes_the_oldest(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 10_000)
    for number in range(40):
        cache.write("ab" + "0" * 62, str(number), bytes(1000))
        os.utime(cache.path("ab" + "0" * 62, str(number)), (number, number))
        assert cache.used_bytes() <= 10_000
    left = sorted(int(path.name.rpartition("-")[2]) for path in tmp_path.glob("ab/*"))
    assert left == list(range(left[0], 40)) and len(left) >= 8


def test_a_clean_up_makes_room_for_a_while(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 10_000)
    used = []
    for number in range(150):
        cache.write("ab" + "0" * 62, str(number), bytes(100))
        used.append(cache.used_bytes())
    assert min(used[100:]) <= 9_100 and max(used) <= 10_000


def test_a_used_block_outlives_unused_ones(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 10_000)
    name = "cd" + "0" * 62
    for number in range(8):
        cache.write(name, str(number), bytes(1000))
        os.utime(cache.path(name, str(number)), (number, number))
    assert cache.read(name, "0", 1000, 0, 5) == bytes(5)
    for number in range(8, 12):
        cache.write(name, str(number), bytes(1000))
    assert cache.has(name, "0", 1000) and not cache.has(name, "1", 1000)


def open_parts(folder: Path) -> int:
    """Returns the number of files below a folder that this process has open."""
    names = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(name.startswith(f"{folder}/") for name in names)


def test_parts_stay_open_up_to_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_cache, "_MAX_OPEN", 3)
    cache, name = ContentCache(tmp_path, 10_000), "ab" + "0" * 62
    for number in range(5):
        cache.write(name, str(number), bytes([number] * 10))
    for number in [0, 1, 2, 3, 4, 0, 4]:
        assert cache.read(name, str(number), 10, 2, 5) == bytes([number] * 3)
        assert open_parts(tmp_path) == min(len(cache._open), 3)
    os.unlink(cache.path(name, "4"))
    assert cache.read(name, "4", 10, 2, 5) == bytes([4] * 3)
    assert cache.read(name, "1", 11, 2, 5) is None
    os.truncate(cache.path(name, "0"), 4)
    assert cache.read(name, "0", 10, 2, 5) is None
    cache.write(name, "0", bytes([9] * 10))
    assert cache.read(name, "0", 10, 2, 5) == bytes([9] * 3)
    del cache
    assert open_parts(tmp_path) == 0


def test_a_part_that_stays_open_counts_as_used(cache: ContentCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("ab" + "0" * 62, "0", bytes(10))
    path = cache.path("ab" + "0" * 62, "0")
    for touch_s, is_touched in ((1000.0, False), (-1.0, True)):
        cache.read("ab" + "0" * 62, "0", 10, 0, 5)
        os.utime(path, (0, 0))
        monkeypatch.setattr(content_cache, "_TOUCH_S", touch_s)
        assert cache.read("ab" + "0" * 62, "0", 10, 0, 5) == bytes(5)
        assert (os.stat(path).st_mtime > 0) == is_touched


def test_a_used_copy_outlives_unused_ones(stored, cache: ContentCache) -> None:
    _, one = stored
    copy = ObjectReader(one, cache).local_copy()
    os.utime(copy, (0, 0))
    assert ObjectReader(one, cache).local_copy() == copy and os.stat(copy).st_mtime > 0


def test_the_usual_bound_follows_a_small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ContentCache(tmp_path)

    def usage(folder: Path) -> types.SimpleNamespace:
        return types.SimpleNamespace(free=20_000 - sum(path.stat().st_size for path in tmp_path.glob("ab/*")))

    monkeypatch.setattr(content_cache.shutil, "disk_usage", usage)
    for number in range(30):
        cache.write("ab" + "0" * 62, str(number), bytes(1000))
    assert 5_000 <= cache.used_bytes() <= 10_000


def test_a_full_disk_is_said_once_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = ContentCache(tmp_path, 10_000)
    cache.write("ab" + "0" * 62, "0", b"kept")
    cache.write("ab" + "0" * 62, "1", b"kept")
    monkeypatch.setattr(content_cache, "write_all", full)
    with caplog.at_level(logging.WARNING):
        cache.write("ab" + "0" * 62, "2", b"new")
        cache.write("ab" + "0" * 62, "3", b"new")
    assert len(caplog.records) == 1 and "No space left on device" in caplog.text and not cache.is_writable
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".new")]
    assert cache.used_bytes() < 8  # space is given back


def test_a_removed_cache_is_made_again(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path / "content")
    cache.write("ab" + "0" * 62, "0", b"first")
    shutil.rmtree(cache.folder)
    cache.write("ab" + "0" * 62, "0", b"again")
    assert cache.read("ab" + "0" * 62, "0", 5, 0, 5) == b"again"


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    for name in (".new-1-1", ".new-1-2"):
        (tmp_path / "ab" / name).write_bytes(b"x")
    os.utime(tmp_path / "ab" / ".new-1-1", (0, 0))
    assert ContentCache(tmp_path, 100).used_bytes() == 0
    assert [path.name for path in (tmp_path / "ab").iterdir()] == [".new-1-2"]


@pytest.mark.parametrize("text", ["s3://bucket/a/b", "gs://b", "S3://x/y", "http://host/file"])
def test_addresses_are_recognised(text: str) -> None:
    assert is_address(text) and not is_address(text.replace("://", ":/"))


@pytest.mark.parametrize(
    "text, said",
    [
        ("S3://bucket/a", "Did you mean 's3'"),
        ("hdfs://host/a", "s3://, gs:// and oss://"),
        ("s3:///a", "names no bucket"),
        ("s3://../b", "name of the bucket"),
        ("s3://user:word@bucket/b", "name of the bucket"),
        ("s3://bucket/a//b", "no name of a file"),
        ("s3://bucket/../b", "no name of a file"),
        ("s3://bucket/" + "x" * 256, "no name of a file"),
    ],
    ids=["case", "scheme", "bucket", "parent", "password", "empty", "above", "long"],
)
def test_wrong_addresses_are_refused(text: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as caught:
        parse_address(text)
    assert "user:word" not in str(caught.value)


@pytest.mark.parametrize("letter", ["x", "\u00e9"], ids=["ascii", "two_bytes"])
def test_a_part_of_a_key_may_be_as_long_as_the_name_of_a_file(tmp_path: Path, letter: str) -> None:
    part = (letter * 255).encode()[:254].decode() + "x"
    (tmp_path / part).touch()  # the system's own limit
    assert parse_address(f"s3://bucket/{part}/b").key == f"{part}/b"
    with pytest.raises(OSError, match="too long"):
        (tmp_path / f"{part}x").touch()
    with pytest.raises(StoreError, match="no name of a file"):
        parse_address(f"s3://bucket/{part}x")


def test_parts_of_an_address() -> None:
    assert parse_address("s3://bucket/a/b/") == Address("s3", "bucket", "a/b")
    bucket = parse_address("s3://bucket")
    assert str(bucket) == "s3://bucket" and bucket.below("a/b") == Address("s3", "bucket", "a/b")
    assert str(bucket.below("a").below("b")) == "s3://bucket/a/b"


@pytest.mark.parametrize(
    "variables, scheme, endpoint",
    [
        ({"AWS_ENDPOINT_URL": "http://a:9000"}, "s3", "http://a:9000"),
        ({"AWS_ENDPOINT_URL": "http://a:9000", "AWS_ENDPOINT_URL_S3": "https://b"}, "s3", "https://b"),
        ({}, "s3", None),
        ({}, "gs", "https://storage.googleapis.com"),
        ({"OSS_ENDPOINT": "https://s3.oss-cn-hangzhou.aliyuncs.com"}, "oss", "https://s3.oss-cn-hangzhou.aliyuncs.com"),
    ],
    ids=["aws", "s3", "none", "gs", "oss"],
)
def test_endpoints(monkeypatch: pytest.MonkeyPatch, variables: Dict[str, str], scheme: str, endpoint: str) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "GS_ENDPOINT", "OSS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert endpoint_of(scheme) == endpoint


@pytest.mark.parametrize("given", ["localhost:9000", "http://user:word@host", "http://host/path"])
def test_wrong_endpoints_are_refused_without_being_repeated(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", given)
    with pytest.raises(StoreError, match="https://HOST:PORT") as caught:
        endpoint_of("s3")
    assert given not in str(caught.value)


def test_oss_needs_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSS_ENDPOINT", raising=False)
    with pytest.raises(StoreError, match="set OSS_ENDPOINT="):
        endpoint_of("oss")


@pytest.mark.parametrize("given", ["many", "0", "-1", "nan", "inf"])
def test_wrong_settings_are_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(content_cache.CACHE_SIZE, given)
    monkeypatch.setenv(store.DEADLINE, given)
    with pytest.raises(ConfigError, match=f"MXTRAIN_STORE_CACHE_GB={given}"):
        content_cache.allowed_bytes()
    with pytest.raises(ConfigError, match=f"MXTRAIN_STORE_DEADLINE_S={given}"):
        store.deadline_s()


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(StoreError, match="s3:// needs the package s3fs .*pip install 's3fs>=") as caught:
        store.ObjectStore("s3")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "source, target, images, said",
    [
        ("photos", "s3://bucket/photos", "copy", "the target is a local folder"),
        ("s3://bucket/photos", "photos", "link", "images=link: the images of 's3://bucket/photos' have no local files"),
    ],
    ids=["target", "links"],
)
def test_conversions_that_need_local_files_are_refused(source: str, target: str, images: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        convert_data_of(source, target, ConvertDataSettings(to="yolo", images=images), [], {}, None)


def test_downloads_into_a_store_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(regular_files, "_remote", types.SimpleNamespace(prefix=f"{tmp_path}/"))
    with pytest.raises(ConfigError, match="downloaded into local folders only"):
        Mnist(root=f"{tmp_path}/mnist", download=True).fetch()


@pytest.mark.parametrize(
    "name", ["open_file", "write_sealed", "os.replace", "os.rename"], ids=["names", "list", "replace", "rename"]
)
def test_processes_may_list_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The other one makes the same folder just before a call of the first one."""
    monkeypatch.setattr(local_names, "list_objects", lambda address: [Listed("a/b", 3, '"1"', 0.0)])
    monkeypatch.setattr(durable, "_REPLACING", threading.RLock())  # processes have no lock in common
    one, other = (LocalNames(tmp_path, ContentCache(tmp_path)) for _ in range(2))
    target = name if "." in name else f"{local_names.__name__}.{name}"
    call = getattr(os if "." in name else local_names, name.rpartition(".")[2])

    def call_after_the_other(*args: object) -> object:
        monkeypatch.setattr(target, call)
        other.path_of("s3://bucket/a")
        return call(*args)

    monkeypatch.setattr(target, call_after_the_other)
    path = one.path_of("s3://bucket/a")
    assert path == other.path_of("s3://bucket/a") and os.stat(f"{path}/b").st_size == 3
    assert LocalNames(tmp_path, ContentCache(tmp_path)).reader(f"{path}/b").size == 3
    assert len(list(tmp_path.iterdir())) == 2, "the folder and its list"


def test_a_used_list_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_names, "list_objects", lambda address: [Listed(f"{address.key}/b", 3, '"1"', 0.0)])
    paths = [LocalNames(tmp_path, ContentCache(tmp_path)).path_of(f"s3://bucket/{name}") for name in ("used", "old")]
    for entry in tmp_path.iterdir():
        os.utime(entry, (0, 0))
    LocalNames(tmp_path, ContentCache(tmp_path)).path_of("s3://bucket/used")
    LocalNames(tmp_path, ContentCache(tmp_path)).path_of("s3://bucket/new")  # a new list removes old ones
    assert LocalNames(tmp_path, ContentCache(tmp_path)).reader(f"{paths[0]}/b").size == 3
    assert not Path(paths[1]).exists() and len(list(tmp_path.glob("*.json"))) == 2


def test_a_list_that_was_used_within_a_month_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_names, "list_objects", lambda address: [Listed(f"{address.key}/b", 3, '"1"', 0.0)])
    names = LocalNames(tmp_path, ContentCache(tmp_path))
    paths = {days: Path(names.path_of(f"s3://bucket/{days}")) for days in (29, 31)}
    for days, path in paths.items():
        tree = tmp_path / path.relative_to(tmp_path).parts[0]
        for entry in (tree, tree.with_suffix(".json")):
            os.utime(entry, (time.time() - days * 86400,) * 2)
    names.path_of("s3://bucket/new")
    assert paths[29].exists() and not paths[31].exists()


def test_an_attempt_leaves_time_for_another_one_and_for_a_slow_link() -> None:
    assert 2 * store._ATTEMPT_S <= store._DEADLINE_S
    assert store._PART_BYTES / 300e3 < store._ATTEMPT_S  # at 300 kB/s


def test_messages_name_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxtrain.errors._local_names", {"/home/me/.cache/mxtrain/objects/trees/"})
    name = "/home/me/.cache/mxtrain/objects/trees/0123456789abcdef0123/s3/bucket/a.csv"
    assert str(DataError(f"'{name}' is empty.")) == "'s3://bucket/a.csv' is empty."
    assert with_addresses("/home/me/a.csv") == "/home/me/a.csv"
