"""Samples per second of the loader against gluon.data.DataLoader, and of image files.

Run it alone on the machine: OMP_NUM_THREADS=2 python scripts/bench_parts/loader.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Dict, Iterable

os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))

import numpy as np

BATCH = 128
SECONDS = {"most": 8.0}
"""Of a rate that is measured."""
MEAN, STD = [0.491, 0.482, 0.447], [0.247, 0.243, 0.262]


def measure(quick: bool = False) -> Dict[str, Any]:
    """Run everything, about a minute and a half on two cores.

    Args:
        quick: little data, to see that it works.

    Returns:
        Samples or images per second by name, and the ratio over the best DataLoader.
    """
    rng = np.random.RandomState(0)
    count = 1_500 if quick else 50_000
    SECONDS["most"] = 0.1 if quick else SECONDS["most"]
    image_NCHW = rng.randint(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    label_N = (np.arange(count) % 10).astype(np.int32)
    result: Dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "load_before": round(os.getloadavg()[0], 2)}
    result["loader"] = _measure_ours(image_NCHW, label_N)
    for workers in (0, 1, 2):
        result[f"gluon_dataloader_{workers}"] = _measure_gluon(image_NCHW, label_N, workers)
    best = max(value for name, value in result.items() if name.startswith("gluon"))
    result["ratio_to_best_gluon"] = round(result["loader"] / best, 1)
    with tempfile.TemporaryDirectory() as folder:
        result.update(_measure_files(Path(folder), 100 if quick else 512))
    return result


def _rate(batches: Iterable[Any], count_of: Any, warm_up: int = 3) -> int:
    """Samples per second after the first few batches, until the batches or the time are over."""
    from mxtrain.engine.backend import mx

    total, begin = 0, 0.0
    for number, batch in enumerate(batches):
        if number == warm_up:
            mx.nd.waitall()
            begin = time.perf_counter()
        elif number > warm_up:
            total += count_of(batch)
            if time.perf_counter() - begin > SECONDS["most"]:
                break
    mx.nd.waitall()
    return round(total / (time.perf_counter() - begin))


def _measure_ours(image_NCHW: np.ndarray, label_N: np.ndarray) -> int:
    from mxtrain.dataset.base import Augment
    from mxtrain.dataset.loading.loader import Loader
    from mxtrain.dataset.loading.sources import MemorySource

    loader = Loader(
        MemorySource(image_NCHW, label_N),
        batch_size=BATCH,
        input_shape=(3, 32, 32),
        mean=MEAN,
        std=STD,
        num_classes=10,
        train=True,
        augment=Augment(crop_padding=4, flip=True),
    )
    return _rate((batch for epoch in range(6) for batch in loader.epoch(epoch)), lambda batch: batch.size)


def _measure_gluon(image_NCHW: np.ndarray, label_N: np.ndarray, workers: int) -> int:
    from gluoncv.data.transforms.block import RandomCrop

    from mxtrain.engine.backend import gluon, mx

    dataset = gluon.data.ArrayDataset(mx.nd.array(image_NCHW.transpose(0, 2, 3, 1), dtype="uint8"), label_N)
    transforms = gluon.data.vision.transforms
    # GluonCV's own train_cifar10.py does the same.
    steps = [RandomCrop(32, pad=4), transforms.RandomFlipLeftRight()]
    steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    dataset = dataset.transform_first(transforms.Compose(steps))
    loader = gluon.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers)
    return _rate(loader, lambda batch: len(batch[1]))


def _measure_files(folder: Path, count: int) -> Dict[str, int]:
    """JPEGs of 500 x 375, about as large as ImageNet's, to 224 x 224 with a random crop and flip."""
    from PIL import Image

    from mxtrain.dataset.image_folder import ImageFolder
    from mxtrain.dataset.image_record import ImageRecord
    from mxtrain.dataset.loading.loader import Loader
    from mxtrain.dataset.make_record import make_record
    from mxtrain.engine.backend import mx

    rng = np.random.RandomState(0)
    for number in range(count):
        target = folder / "images" / f"class{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.randint(0, 256, (24, 32, 3), dtype=np.uint8))
        small.resize((500, 375), Image.BICUBIC).save(target / f"{number}.jpg", quality=90)
    make_record(str(folder / "images"), str(folder / "packed" / "images"), val_fraction=0.02)
    result = {}
    options = {"batch_size": 64, "val_fraction": 0.02}
    for name, dataset in (
        ("image_folder_224", ImageFolder(root=str(folder / "images"), **options)),
        ("image_record_224", ImageRecord(root=str(folder / "packed"), **options)),
    ):
        splits = dataset.open()
        loader = Loader(
            splits.train,
            batch_size=64,
            input_shape=splits.shape,
            mean=splits.mean,
            std=splits.std,
            num_classes=2,
            train=True,
            augment=dataset.augment,
        )
        result[name] = _rate((batch for epoch in range(8) for batch in loader.epoch(epoch)), lambda batch: batch.size)
    iterator = mx.io.ImageRecordUInt8Iter(
        path_imgrec=str(folder / "packed" / "images_train.rec"),
        path_imgidx=str(folder / "packed" / "images_train.idx"),
        data_shape=(3, 224, 224),
        batch_size=64,
        shuffle=True,
        random_resized_crop=True,
        min_random_area=0.25,
        max_random_area=1.0,
        min_aspect_ratio=3 / 4,
        max_aspect_ratio=4 / 3,
        rand_mirror=True,
        preprocess_threads=len(os.sched_getaffinity(0)),
    )
    result["mxnet_iterator_224"] = _rate(_epochs(iterator, 8), lambda batch: 64 - batch.pad)
    return result


def _epochs(iterator: Any, count: int) -> Iterable[Any]:
    for _ in range(count):
        for batch in iterator:
            batch.data[0].wait_to_read()
            yield batch
        iterator.reset()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    warnings.simplefilter("ignore")
    print(json.dumps(measure(quick="--quick" in sys.argv), indent=2))
