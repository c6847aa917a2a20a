"""Training from an object store with 20 ms of latency against training from the local disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List

from bench_parts.harness import ROOT, Measured, Options, say, status_of, train

LATENCY_S = 0.02
WAYS = ("local", "cold", "warm")
LEAST = {"cold": 0.8, "warm": 0.95}
SERVER = """
import sys
from object_store import BUCKET, running_store
from pathlib import Path

def send_range(handler):
    # moto reads the whole object for each range.
    found = contents.get(handler.path)
    if handler.command != "GET" or found is None:
        return False
    begin, end = map(int, handler.headers["Range"][6:].split("-"))
    part = found[0][begin : end + 1]
    handler.send_response(206)
    handler.send_header("ETag", found[1])
    handler.send_header("Content-Length", str(len(part)))
    handler.end_headers()
    handler.wfile.write(part)
    return True

with running_store() as store:
    store.upload(Path(sys.argv[1]), "records")
    contents = {}
    for key in store.list_keys("records/"):
        etag = store.client.head_object(Bucket=BUCKET, Key=key)["ETag"]
        contents[f"/{BUCKET}/{key}"] = memoryview(store.get(key)), etag
    store.proxy.fault, store.proxy.latency_s = send_range, float(sys.argv[2])
    print(store.proxy.url, flush=True)
    sys.stdin.read()
"""


def measure(options: Options) -> Measured:
    """Samples per second of an epoch of a small network, for which decoding is most of the work; all ways in turn."""
    found = Measured()
    folder = Path(tempfile.mkdtemp(dir=options.work))
    write_records(folder, 300 if options.quick else 9000)
    rates: Dict[str, List[float]] = {way: [] for way in WAYS}
    with server(folder / "records") as environment:
        for turn in range(1 if options.quick else options.turns or 5):
            shutil.rmtree(folder / "cache", ignore_errors=True)
            for way in WAYS:
                rate = samples_per_s(folder, way, turn, {**environment, "XDG_CACHE_HOME": str(folder / "cache")})
                rates[way].append(rate)
                say(f"  turn {turn}, {way}: {rate:.1f} samples/s")
    for way, values in rates.items():
        found.add(way, "samples/s", values)
    for way, least in LEAST.items():
        found.compare(f"{way} against local", rates[way], rates["local"], least)
    return found


def write_records(folder: Path, count: int) -> None:
    """Writes JPEG images of 25 kB, enlarged noise, in two classes."""
    import numpy as np
    from PIL import Image

    from mxtrain.vision.images.make_record import make_record

    random = np.random.default_rng(0)
    for number in range(count):
        path = folder / "photos" / ("a", "b")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 255, (48, 48, 3), dtype=np.uint8))
        coarse.resize((256, 256), Image.BICUBIC).save(path, quality=90)
    make_record(str(folder / "photos"), str(folder / "records" / "images"))
    size = (folder / "records" / "images_train.rec").stat().st_size
    say(f"  {count} images, {size / 1e6:.0f} MB")


@contextlib.contextmanager
def server(records: Path) -> Iterator[Dict[str, str]]:
    """Runs moto's server behind a slow proxy in a process of its own; yields the environment that names it."""
    with store_process(SERVER, str(records), str(LATENCY_S)) as environment:
        yield environment


@contextlib.contextmanager
def store_process(script: str, *arguments: str) -> Iterator[Dict[str, str]]:
    """Runs an object store in a process of its own; yields the environment that names it.

    Args:
        script: Python code that prints the URL of the store, and ends with its standard input.
        arguments: arguments of the script.
    """
    sys.path.append(str(ROOT / "tests" / "support"))
    from object_store import ENVIRONMENT

    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield {**ENVIRONMENT, "AWS_ENDPOINT_URL_S3": process.stdout.readline().strip()}
    finally:
        process.stdin.close()
        process.wait()


def samples_per_s(folder: Path, way: str, turn: int, environment: Dict[str, str]) -> float:
    """Trains one epoch, in another order of the records in each turn; returns samples per second."""
    from object_store import BUCKET

    root = str(folder / "records") if way == "local" else f"s3://{BUCKET}/records"
    words = [
        "dataset=image_record",
        f"dataset.root={root}",
        "dataset.image_size=[64,64]",
        "dataset.batch_size=50",
        "model=mlp",
        "model.hidden=[16]",
        "trainer.max_epochs=1",
        "trainer.limit_val_batches=1",
        "checkpoint=off",
        f"trainer.seed={turn}",
    ]
    return float(status_of(train(words, folder / f"{way}{turn}", environment=environment))["samples_per_s"])
