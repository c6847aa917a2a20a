"""The loader's rates: see loader.py, which runs in a process of its own because it imports MXNet."""

from __future__ import annotations

import json

from bench_parts.measured import Measured, Options, Series, Target
from bench_parts.processes import run, tuned_environment

NAMES = {
    "loader": "CIFAR-format samples, crop, flip, normalise: our loader",
    "gluon_dataloader_0": "the same: gluon.data.DataLoader, no workers",
    "gluon_dataloader_1": "the same: gluon.data.DataLoader, 1 worker",
    "gluon_dataloader_2": "the same: gluon.data.DataLoader, 2 workers",
    "image_folder_224": "JPEG 500 x 375 to 224 x 224: image_folder",
    "image_record_224": "JPEG 500 x 375 to 224 x 224: image_record",
    "mxnet_iterator_224": "JPEG 500 x 375 to 224 x 224: MXNet's ImageRecordUInt8Iter",
}


def measure(options: Options) -> Measured:
    """Three rounds over all of them."""
    rounds = []
    for _ in range(1 if options.quick else 3):
        arguments = ["-m", "bench_parts.loader", *(["--quick"] if options.quick else [])]
        rounds.append(json.loads(run(arguments, tuned_environment(), options.work).stdout))
    series = [Series(text, "samples/s", [found[name] for found in rounds]) for name, text in NAMES.items()]
    gluon = max(s.median for s, name in zip(series, NAMES) if name.startswith("gluon"))
    return Measured(
        series=series,
        targets=[Target("loader / best DataLoader", series[0].median / gluon, 1.0, at_least=True)],
        notes=["50,000 images of 3 x 32 x 32 in batches of 128; 512 JPEG files in batches of 64. Nothing is trained."],
    )
