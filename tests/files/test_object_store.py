"""Data in an object store, read from a real S3 server (moto's) through a proxy that breaks it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import List

import numpy as np
import pytest
from image_loader import image_loader
from object_store import BUCKET, ENVIRONMENT, ProxyHandler, StoreProxy, TestStore, shared_store, store  # noqa: F401
from PIL import Image

from mxtrain.data.checking.dataset_check import CollectedFindings, check_dataset
from mxtrain.data.checking.problems import Problem
from mxtrain.data.fingerprint import fingerprint
from mxtrain.data.spec import BaseDataset, open_splits
from mxtrain.files import regular_files
from mxtrain.files.object_store import local_names
from mxtrain.files.object_store.address import Address, ObjectChanged, StoreError
from mxtrain.files.object_store.local_names import local_path
from mxtrain.files.object_store.store import list_objects
from mxtrain.tables.number_table import NumberTable
from mxtrain.terminal.progress import SILENT
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.images.make_record import make_record

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test lists anew, with its own cache."""
    monkeypatch.setattr(local_names, "_made", {})
    monkeypatch.setattr(regular_files, "_remote", None)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, and records of them in `rec`; noise, so that a file has 8 kB."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 255, (60, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{number}.png")
    make_record(str(folder / "photos"), str(folder / "rec" / "images"))
    return folder


def assert_equal_samples(remote: BaseDataset, local: BaseDataset) -> None:
    found, wanted = open_splits(remote), open_splits(local)
    for name in ("train", "val"):
        index_B = np.arange(len(getattr(wanted, name)))
        arrays = [getattr(splits, name).fetch(index_B, seed=1, epoch=2, train=True) for splits in (found, wanted)]
        assert all(np.array_equal(*pair) for pair in zip(*arrays))
    assert fingerprint(remote, found) == fingerprint(local, wanted)


@pytest.mark.parametrize("kind, part", [(ImageRecord, "rec"), (ImageFolder, "photos")])
def test_images_have_the_order_bits_and_fingerprint_of_local_ones(store, photos: Path, kind, part: str) -> None:
    address = store.upload(photos / part, f"data/{part}")
    assert_equal_samples(kind(root=address), kind(root=str(photos / part)))
    requests = [line for line in store.proxy.requests if line.startswith("GET")]
    assert len(requests) == len(set(requests)), "something was read twice"
    before = len(requests)
    local_names._made.clear()  # as another process: the list is new, the contents are on the disk
    assert_equal_samples(kind(root=address), kind(root=str(photos / part)))
    assert len(store.proxy.requests) == before + 1


def test_the_files_of_a_batch_are_requested_together(store, photos: Path) -> None:
    splits = open_splits(ImageFolder(root=store.upload(photos / "photos", "photos")))
    shutil.rmtree(local_names._names()._cache.folder, ignore_errors=True)  # opening has read some
    store.proxy.latency_s = 0.05
    loader = image_loader(
        splits.train,
        batch_size=10,
        input_shape=splits.shape,
        mean=splits.mean,
        std=splits.std,
        num_classes=2,
        num_workers=1,
    )
    batches = loader.epoch(0)
    next(batches).inputs[0].wait_to_read()
    batches.close()
    assert store.proxy.most_at_once >= 8


def test_tables_and_patterns_equal_local_files(store, tmp_path: Path) -> None:
    rows = "".join(f"{number},{number * number},{number % 7}\n" for number in range(400))
    for number in range(2):
        (tmp_path / f"part{number}.csv").write_text("a,b,y\n" + rows)
        store.put(f"tables/part{number}.csv", (tmp_path / f"part{number}.csv").read_bytes())
    settings = {"target": "y"}
    local = NumberTable(train=str(tmp_path / "part0.csv"), **settings)
    remote = NumberTable(train=f"s3://{BUCKET}/tables/part0.csv", **settings)
    assert fingerprint(remote, open_splits(remote)) == fingerprint(local, open_splits(local))
    found = sorted(Path(local_path(f"s3://{BUCKET}/tables/")).glob("part*.csv"))
    assert [regular_files.read_regular(path) for path in found] == [("a,b,y\n" + rows).encode()] * 2
    assert local_path(f"s3://{BUCKET}/tables/part[0-9].csv").endswith("/tables/part[0-9].csv")


def test_libraries_get_a_local_copy(store) -> None:
    content = bytes(range(256)) * 10_000
    path = local_path(store.put("sounds/a.bin", content))
    with regular_files.open_regular(path) as (file, size):
        assert size == len(content) and file.read(3) == content[:3]
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert mapped[1000:1010] == content[1000:1010]
    assert Path(regular_files.path_for_library(path)).read_bytes() == content


def test_records_are_recommended_for_many_small_objects(
    store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(local_names, "_MANY", 3)
    for number in range(3):
        store.put(f"many/{number}", b"12")
        store.put(f"large/{number}", bytes(1 << 20))
    store.put("many/3", b"12")
    with caplog.at_level(logging.INFO):
        local_path(f"s3://{BUCKET}/large")
        assert not caplog.records
        local_path(f"s3://{BUCKET}/many")
        local_path(f"s3://{BUCKET}/many/")
    assert len(caplog.records) == 1 and "has 4 objects of 2 bytes on average" in caplog.text
    assert f"data convert s3://{BUCKET}/many FOLDER to=records" in caplog.text


# Faults that pass.


def first_gets(count: int, answer) -> object:
    """A fault of the first requests for contents."""
    left = [count]

    def fault(handler: ProxyHandler) -> bool:
        if handler.command != "GET" or "list-type" in handler.path or left[0] == 0:
            return False
        left[0] -= 1
        return answer(handler)

    return fault


def truncated(handler: ProxyHandler) -> bool:
    """Half of an answer that says it is whole, and a lost connection."""
    handler.send_response(206)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(bytes(500))
    handler.close_connection = True
    return True


def short(handler: ProxyHandler) -> bool:
    """A complete answer with fewer bytes than asked for."""
    handler.send_response(206)
    handler.send_header("Content-Length", "10")
    handler.end_headers()
    handler.wfile.write(bytes(10))
    return True


def lost(handler: ProxyHandler) -> bool:
    handler.close_connection = True
    return True


@pytest.mark.parametrize(
    "answer",
    [
        lambda handler: handler.refuse(503, "SlowDown"),
        lambda handler: handler.refuse(500, "InternalError"),
        lambda handler: handler.refuse(502, "BadGateway"),
        truncated,
        short,
        lost,
    ],
    ids=["throttled", "internal", "gateway", "truncated", "short", "lost"],
)
def test_faults_that_pass_change_nothing(store, answer) -> None:
    content = bytes(range(256)) * 20
    path = local_path(store.put("a.bin", content))
    store.proxy.fault = first_gets(2, answer)
    assert regular_files.read_regular(path) == content
    assert store.proxy.gets_of("a.bin") == 3


def trickling(handler: ProxyHandler) -> bool:
    """An answer whose bytes come so slowly that no timeout of a connection ends it."""
    handler.send_response(206)
    handler.send_header("Content-Length", "5120")
    handler.end_headers()
    with contextlib.suppress(OSError):  # the reader hangs up
        for _ in range(100):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)
    handler.close_connection = True
    return True


def test_an_attempt_ends_long_before_the_deadline(store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxtrain.files.object_store.store._ATTEMPT_S", 0.5)
    path = local_path(store.put("a.bin", bytes(5120)))
    store.proxy.fault = first_gets(2, trickling)
    start_s = time.monotonic()
    assert regular_files.read_regular(path) == bytes(5120)
    assert 1.0 < time.monotonic() - start_s < 4.0 and store.proxy.gets_of("a.bin") == 3


# Faults that stay.


@pytest.mark.parametrize(
    "answer, said",
    [
        (lambda handler: handler.refuse(503, "SlowDown"), "answered SlowDown, .* times in 1 seconds"),
        (lambda handler: handler.refuse(500, "InternalError"), "answered InternalError"),
        (truncated, "the connection was lost|failed"),
        (short, "sent 10 bytes instead of 5"),
        (lambda handler: bool(time.sleep(3)) or lost(handler), "did not answer in time"),
        (lambda handler: handler.refuse(403, "AccessDenied"), "access is denied: .* do not allow to read it"),
        (lambda handler: handler.refuse(400, "ExpiredToken"), "the credentials have expired. Log in again"),
        (lambda handler: handler.refuse(403, "InvalidAccessKeyId"), "does not know the access key"),
        (lambda handler: handler.refuse(403, "SignatureDoesNotMatch"), "does not belong to the access key"),
        (lambda handler: handler.refuse(403, "SomethingNew"), r"refuses to read it \(SomethingNew\)"),
    ],
    ids=["throttled", "internal", "truncated", "short", "hangs", "denied", "expired", "key", "signature", "unknown"],
)
def test_faults_that_stay_are_sentences_without_credentials(
    store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer,
    said: str,
) -> None:
    path = local_path(store.put("a.bin", bytes(5120)))
    monkeypatch.setenv("MXTRAIN_STORE_DEADLINE_S", "1")
    monkeypatch.setattr("mxtrain.files.object_store.store._stores", {})
    store.proxy.fault = first_gets(1000, answer)
    start_s = time.monotonic()
    with caplog.at_level(logging.INFO), pytest.raises(StoreError, match=said) as caught:
        regular_files.read_regular(path)
    assert time.monotonic() - start_s < 2.8
    assert f"'s3://{BUCKET}/a.bin'" in str(caught.value) and "Found credentials" not in caplog.text
    for secret in (ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], ENVIRONMENT["AWS_ACCESS_KEY_ID"]):
        assert secret not in str(caught.value) + caplog.text


def test_missing_things_are_named(store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("photos/a.png", b"1")
    with pytest.raises(StoreError, match="'s3://no-such-bucket': there is no such bucket at http://127"):
        local_path("s3://no-such-bucket/photos")
    with pytest.raises(StoreError, match=f"nothing at 's3://{BUCKET}/fotos'.* Did you mean 'photos'"):
        local_path(f"s3://{BUCKET}/fotos")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setattr("mxtrain.files.object_store.store._stores", {})
    local_names._made.clear()
    with pytest.raises(StoreError, match="no credentials in the environment.*MXTRAIN_STORE_ANONYMOUS=1"):
        local_path(f"s3://{BUCKET}/photos")


AWS_CONFIG = """
[profile login]
sso_session = company
sso_account_id = 123456789012
sso_role_name = training
[sso-session company]
sso_start_url = https://company.awsapps.com/start
sso_region = us-east-1
[profile role]
role_arn = arn:aws:iam::123456789012:role/training
source_profile = missing
"""


@pytest.mark.parametrize(
    "profile, said",
    [
        ("login", r"'s3://bucket/a': the login of AWS SSO is missing or has expired.*\(aws sso login\)"),
        ("misspelt", r"cannot be used \(ProfileNotFound\). Check AWS_PROFILE"),
        ("role", r"cannot be used \(InvalidConfigError\)"),
    ],
    ids=["login", "misspelt", "role"],
)
def test_settings_of_the_aws_tools_are_not_tried_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, profile: str, said: str
) -> None:
    pytest.importorskip("s3fs")
    (tmp_path / "config").write_text(AWS_CONFIG)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", profile)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setattr("mxtrain.files.object_store.store._stores", {})
    with caplog.at_level(logging.INFO), pytest.raises(StoreError, match=said):
        list_objects(Address("s3", "bucket", "a"))
    assert not caplog.text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_that_is_not_trusted_is_named(store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = store.put("a", b"1")
    files = ("-keyout", f"{tmp_path}/key.pem", "-out", f"{tmp_path}/certificate.pem")
    names = ("-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *names], check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    proxy = StoreProxy(store.proxy.target_port)
    proxy.socket = context.wrap_socket(proxy.socket, server_side=True)
    threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url.replace("http:", "https:"))
    monkeypatch.setattr("mxtrain.files.object_store.store._stores", {})
    with pytest.raises(StoreError, match="the certificate of the store https://127.* Set AWS_CA_BUNDLE=FILE"):
        local_path(address)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "certificate.pem"))
    monkeypatch.setattr("mxtrain.files.object_store.store._stores", {})
    assert regular_files.read_regular(local_path(address)) == b"1"
    proxy.shutdown()
    proxy.server_close()


def test_a_name_that_is_object_and_folder_is_refused(store) -> None:
    store.put("x/a", b"1")
    store.put("x/a/b", b"2")
    with pytest.raises(StoreError, match=f"'s3://{BUCKET}/x/a' is an object and a folder"):
        local_path(f"s3://{BUCKET}/x")
    assert not list((Path(local_names._names().prefix)).glob(".new*"))


# Changed objects.


@pytest.mark.parametrize("ignores_condition", [False, True])
def test_a_changed_object_is_an_error_and_never_mixed(store, photos: Path, ignores_condition: bool) -> None:
    store.proxy.drops_conditions = ignores_condition
    content = bytes([1]) * (2 << 20)
    address = store.put("big.rec", content)
    file = regular_files.open_positioned(local_path(address))
    assert file.read(5, (1 << 20) + 7) == content[:5]
    store.put("big.rec", bytes([2]) * (2 << 20))
    assert file.read(5, (1 << 20) + 7) == content[:5]  # what was read before
    with pytest.raises(ObjectChanged, match=f"'s3://{BUCKET}/big.rec' was changed or removed while it was in use"):
        file.read(5, 0)
    store.client.delete_object(Bucket=BUCKET, Key="big.rec")
    with pytest.raises(ObjectChanged, match="was changed or removed"):
        file.read(5, 0)
    store.put("big.rec", bytes([3]) * (2 << 20))
    local_names._made.clear()
    assert regular_files.open_positioned(local_path(address)).read(5, (1 << 20) + 7) == bytes([3]) * 5


def test_data_check_names_addresses(store, photos: Path) -> None:
    address = store.upload(photos / "photos", "photos")
    store.put("photos/cat/3.png", b"no image")
    problems: List[Problem] = []
    check_dataset(ImageFolder(root=address), CollectedFindings(write=problems.append), SILENT, 2)
    (problem,) = problems
    assert problem.location.file == f"{address}/cat/3.png" and f"'{address}/cat/3.png'" in problem.fact


# The cache.

READ = """
import sys, hashlib
from mxtrain.files import regular_files
from mxtrain.files.object_store.local_names import local_path
file = regular_files.open_positioned(local_path(sys.argv[1]))
digest = hashlib.sha256()
for position in range(0, file.size, 100_000):
    digest.update(file.read(100_000, position))
print(digest.hexdigest())
"""


def start_reader(address: str, setup: str = "") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", setup + READ, address], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_processes_share_the_cache(store, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(5 << 20)
    address = store.put("big.bin", content)
    readers = [start_reader(address) for _ in range(2)]
    said = [reader.communicate(timeout=60)[0].strip() for reader in readers]
    assert said == [hashlib.sha256(content).hexdigest()] * 2
    assert 5 <= store.proxy.gets_of("big.bin") <= 10
    before = store.proxy.gets_of("big.bin")
    assert start_reader(address).communicate(timeout=60)[0].strip() == said[0]
    assert store.proxy.gets_of("big.bin") == before
    assert not list((tmp_path / "cache").rglob(".new*"))


def test_the_cache_is_bounded_and_the_content_right(store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXTRAIN_STORE_CACHE_GB", "0.004")
    content = np.random.default_rng(0).bytes(9 << 20)
    file = regular_files.open_positioned(local_path(store.put("big.bin", content)))
    for position in range(0, len(content), 300_000):
        assert file.read(300_000, position) == content[position : position + 300_000]
    used = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("content/*/*"))
    assert 1 << 20 <= used <= 4_000_000
    with pytest.raises(StoreError, match="has 9,437,184 bytes and is read as a whole, .* may hold 4,000,000"):
        regular_files.path_for_library(local_path(f"s3://{BUCKET}/big.bin"))


def test_a_disk_without_room_reads_from_the_store(store, tmp_path: Path) -> None:
    """A limit of the size of files stands for a full disk: the system refuses the same calls."""
    content = bytes(range(256)) * 4000
    address = store.put("small.bin", content)
    limit = "import resource, signal\nresource.setrlimit(resource.RLIMIT_FSIZE, (1_030_000, 1_030_000))\n"
    said = start_reader(address, limit).communicate(timeout=60)[0].split()
    assert said[-1] == hashlib.sha256(content).hexdigest()


def test_a_missing_bucket_ends_the_command_before_anything_is_written(store, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mxtrain", "dataset=image_record", "dataset.root=s3://no-such-bucket/x"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stderr.count("\n") <= 2
    assert "error: 's3://no-such-bucket': there is no such bucket" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
