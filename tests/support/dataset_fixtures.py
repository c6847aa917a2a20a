"""Small files in the real formats, made anew for each test that asks."""

import gzip
import struct

import numpy as np
import pytest

from mxtrain.data.checking.dataset_check import CollectedFindings, check_dataset


@pytest.fixture
def write_idx(tmp_path):
    """Write the four files of MNIST's format with `count` training and 20 test images; gives the folder."""

    def write(count=100, packed=True):
        rng = np.random.RandomState(0)
        for part, number in (("train", count), ("t10k", 20)):
            image = rng.randint(0, 256, (number, 28, 28), dtype=np.uint8)
            label = (np.arange(number) % 10).astype(np.uint8)
            for name, content in (
                (f"{part}-images-idx3-ubyte", struct.pack(">4I", 0x803, number, 28, 28) + image.tobytes()),
                (f"{part}-labels-idx1-ubyte", struct.pack(">2I", 0x801, number) + label.tobytes()),
            ):
                if packed:
                    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
                else:
                    (tmp_path / name).write_bytes(content)
        return tmp_path

    return write


@pytest.fixture
def write_images(tmp_path):
    """Write JPEG files of one colour per class in `folder/CLASS/`; gives the folder."""
    from PIL import Image

    def write(folder="images", classes=("blue", "red"), count=8, size=(60, 40)):
        rng = np.random.RandomState(1)
        for label, name in enumerate(classes):
            target = tmp_path / folder / name
            target.mkdir(parents=True)
            for number in range(count):
                pixels = rng.randint(0, 60, (size[1], size[0], 3), dtype=np.uint8)
                pixels[..., 2 - 2 * (label % 2)] += 180
                Image.fromarray(pixels).save(target / f"{number}.jpg", quality=95)
        return tmp_path / folder

    return write


class Unwatched:
    """Shows nothing."""

    def begin(self, what, total):
        pass

    def advance(self, count):
        pass


@pytest.fixture
def check(tmp_path):
    """Checks a dataset; gives [(kind, file below tmp_path, line or record)] in order, and the census and findings as
    attributes."""

    def run(dataset, num_threads=2, **options):
        problems = []
        findings = CollectedFindings(write=problems.append, **options)
        run.census = check_dataset(dataset, findings, Unwatched(), num_threads)
        run.findings, run.problems = findings, problems
        return [
            (
                problem.kind,
                problem.location.file.replace(f"{tmp_path}/", ""),
                problem.location.record if problem.location.line is None else problem.location.line,
            )
            for problem in problems
        ]

    return run
