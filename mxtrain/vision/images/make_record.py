"""Packs a folder of images into RecordIO files: python -m mxtrain.vision.images.make_record FOLDER PREFIX.

FOLDER is laid out as for `dataset=image_folder`. Writes PREFIX_train.rec, PREFIX_val.rec, PREFIX_test.rec if there are
test images, an .idx file for each, and PREFIX_classes.txt; all of them or none.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, List, Optional, Tuple

import numpy as np

from mxtrain.data.loading.dataset_files import read_bytes
from mxtrain.data.loading.sources import Subset
from mxtrain.data.spec import Source, open_splits
from mxtrain.errors import DataError, MxtrainError
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.images.files import MAX_BYTES, ImageFiles
from mxtrain.vision.images.pixels import REPLACE, ImageReader, read_error
from mxtrain.vision.images.record_file import RecordFile
from mxtrain.vision.images.record_writer import RecordWriter, pack_record


def make_record(
    folder: str,
    prefix: str,
    *,
    size: int = 0,
    quality: int = 95,
    val_fraction: float = 0.15,
    test_fraction: float = 0.0,
    split_seed: int = 0,
) -> List[Path]:
    """Writes the RecordIO files of a folder of images.

    Args:
        folder: `root` of `dataset=image_folder`.
        prefix: beginning of the paths of the files; its folder is created if it does not exist.
        size: length in pixels to which the shorter side is reduced, as JPEG; 0: files are packed unchanged.
        quality: JPEG quality from 1 to 95, used if `size` is given.
        val_fraction, test_fraction, split_seed: settings of `dataset=image_folder`.

    Returns:
        The paths of the written files.

    Raises:
        DataError: a file exists already, the folder has another layout, or an image cannot be read.
    """
    splits = open_splits(
        ImageFolder(root=folder, val_fraction=val_fraction, test_fraction=test_fraction, split_seed=split_seed)
    )
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    parts = {name: source for name, source in parts.items() if source is not None}
    target = Path(prefix)
    names = [f"{target.name}_classes.txt"]
    for part in ("test", "val", "train"):  # train.rec comes last: its existence means that all files are complete
        names += [f"{target.name}_{part}.idx", f"{target.name}_{part}.rec"]
    for name in names:
        if (target.parent / name).exists():
            raise DataError(f"'{target.parent / name}' exists already. Remove it or choose another PREFIX.")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        (scratch / names[0]).write_text("".join(f"{name}\n" for name in splits.class_names), encoding="utf-8")
        for part, source in parts.items():
            _write_part(scratch / f"{target.name}_{part}", source, size, quality)  # type: ignore[arg-type]  # of images
        written = [name for name in names if (scratch / name).exists()]
        for name in written:
            _sync(scratch / name)
            os.replace(scratch / name, target.parent / name)
        _sync(target.parent)
        return [target.parent / name for name in written]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_part(path: Path, source: Source, size: int, quality: int) -> None:
    """Writes the .rec and .idx file of a split, and reads the labels back.

    Raises:
        DataError: an image cannot be read, or the written labels differ.
    """
    files, index_N = _files_of(source)
    with RecordWriter(Path(f"{path}.rec")) as writer:
        for number, index in enumerate(index_N.tolist()):
            image = encode_file(files.paths[index], size, quality)
            writer.write(pack_record(number, [float(files.label_N[index])], image))
    written = RecordFile(Path(f"{path}.rec")).read_labels()
    if not np.array_equal(written, files.label_N[index_N]):
        raise DataError(f"'{path}.rec' does not hold what was written. Is the disk full?")


def _files_of(source: Any) -> Tuple[ImageFiles, np.ndarray]:
    """Returns the image files of a split of `ImageFolder`, and the indices of its samples among them."""
    if isinstance(source, Subset):
        return _files_of(source.source)[0], source.index_N
    return source.encoded, np.arange(len(source))


def encode_file(path: str, size: int, quality: int) -> bytes:
    """Returns the content of an image file, reduced and encoded as JPEG if `size` is given; see `make_record`.

    Raises:
        DataError: the image cannot be read.
    """
    from PIL import Image

    try:
        content = read_bytes(path, MAX_BYTES)
        image = ImageReader(content)
        width, height = image.size
        scale = min(size / min(width, height), 1.0) if size else 1.0
        target = (max(size, round(width * scale)), max(size, round(height * scale))) if scale < 1 else image.size
        image_CHW = image.resized((0, 0, width, height), target, 3, bicubic=True)
        if not size:
            return content  # decoded only to reject damaged images
        result = io.BytesIO()
        pixels_HWC = np.rint(np.clip(image_CHW, 0, 255)).astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(np.ascontiguousarray(pixels_HWC)).save(result, "JPEG", quality=quality)
        return result.getvalue()
    except MxtrainError:
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
        fact = read_error(f"'{path}'", error)
        raise DataError(f"{fact} {REPLACE}") from error


def _sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)  # lint: a file that this process has written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m mxtrain.vision.images.make_record",
        description="Pack a folder of images into RecordIO files for dataset=image_record.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="CLASS folders, or train/CLASS with val/CLASS beside")
    parser.add_argument("prefix", metavar="PREFIX", help="writes PREFIX_train.rec, PREFIX_val.rec, PREFIX_classes.txt")
    parser.add_argument("--size", type=int, default=0, help="reduce the shorter side to so many pixels (default: keep)")
    parser.add_argument("--quality", type=int, default=95, help="JPEG quality, 1 to 95, with --size (default: 95)")
    parser.add_argument("--val-fraction", type=float, default=0.15, help="where there is no val folder (default: 0.15)")
    parser.add_argument("--test-fraction", type=float, default=0.0, help="where there is no test folder (default: 0)")
    parser.add_argument("--split-seed", type=int, default=0, help="which images are held out (default: 0)")
    parsed = parser.parse_args(arguments)
    if parsed.size < 0 or not 1 <= parsed.quality <= 95:
        parser.error("--size must be at least 0, and --quality from 1 to 95")
    if parsed.val_fraction <= 0 or parsed.test_fraction < 0 or parsed.val_fraction + parsed.test_fraction >= 1:
        parser.error("--val-fraction must be above 0, --test-fraction at least 0, and both together below 1")
    options = {name.replace("-", "_"): value for name, value in vars(parsed).items()}
    try:
        written = make_record(options.pop("folder"), options.pop("prefix"), **options)
    except MxtrainError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for path in written:
        print(path)
    target = Path(parsed.prefix)
    chosen = f"dataset=image_record dataset.root={target.parent} dataset.prefix={target.name}"
    print(f"Train on them: python -m mxtrain {chosen}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
