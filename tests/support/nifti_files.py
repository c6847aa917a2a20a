"""NIfTI files, written by the field list of nifti1.h and nifti2.h, so that tests need no library."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any, Optional, Sequence

import numpy as np

CODES = {"u1": 2, "i2": 4, "i4": 8, "f4": 16, "f8": 64, "i1": 256, "u2": 512, "u4": 768, "i8": 1024, "u8": 1280}
RAS = np.diag([1.0, 1.0, 1.0, 1.0])
LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


def nifti(
    values: np.ndarray,
    affine_44: Optional[np.ndarray] = RAS,
    *,
    second: bool = False,
    order: str = "<",
    slope: float = 0.0,
    intercept: float = 0.0,
    bounds: Sequence[float] = (0.0, 0.0),
    dim: Optional[Sequence[int]] = None,
    code: Optional[int] = None,
    offset: Optional[int] = None,
    magic: Optional[bytes] = None,
    spacing: Optional[Sequence[float]] = None,
) -> bytes:
    """The bytes of a file.

    Args:
        values: (X, Y, Z) or (X, Y, Z, T).
        affine_44: sform; None: the file does not say its orientation.
        second: NIfTI-2.
        order: byte order, < or >.
        slope, intercept, bounds, dim, code, offset, magic: fields of the header.
        spacing: pixdim; None: that of the affine.
    """
    head = bytearray(544 if second else 352)

    def put(form: str, first: int, at: int, *numbers: Any) -> None:
        struct.pack_into(order + form, head, at if second else first, *numbers)

    real = "d" if second else "f"
    sizes = [values.ndim, *values.shape]
    sizes = list(dim) if dim is not None else sizes + [1] * (8 - len(sizes))
    steps = list(spacing or (np.linalg.norm(affine_44[:3, :3], axis=0) if affine_44 is not None else [1.0] * 3))
    put("i", 0, 0, 540 if second else 348)
    put("8q" if second else "8h", 40, 16, *sizes)
    put("h", 70, 12, CODES[values.dtype.str[1:]] if code is None else code)
    put("h", 72, 14, 8 * values.itemsize)
    put("8" + real, 76, 104, 1.0, *steps, 1.0, 0.0, 0.0, 0.0)
    put("q" if second else "f", 108, 168, len(head) if offset is None else offset)
    put("2" + real, 112, 176, slope, intercept)
    put("2" + real, 124, 192, bounds[1], bounds[0])
    put("2i" if second else "2h", 252, 344, 0, 0 if affine_44 is None else 1)
    if affine_44 is not None:
        put("12" + real, 280, 400, *affine_44[:3].ravel())
    name = magic or (b"n+2\0\r\n\x1a\n" if second else b"n+1\0")
    head[4 if second else 344 : (4 if second else 344) + len(name)] = name
    return bytes(head) + values.astype(values.dtype.newbyteorder(order)).tobytes(order="F")


def write_volumes(
    root: Path, count: int = 6, names: tuple = ("ill", "well"), size: Sequence[int] = (20, 24, 4)
) -> Path:
    """Volumes in `root/CLASS/pNUMBER/ct.nii.gz`, whose classes differ by a bright block in all slices."""
    rng = np.random.RandomState(0)
    for label, name in enumerate(names):
        for number in range(count):
            values = rng.randint(-1000, 1000, size).astype(np.int16)
            values[6:14, 8:16] = 600 * label + rng.randint(-40, 40, (8, 8, size[2]))
            folder = root / name / f"p{number}{name[0]}"
            folder.mkdir(parents=True)
            (folder / "ct.nii.gz").write_bytes(gzip.compress(nifti(values), 1))
    return root


def write_labelled(root: Path, count: int = 6, size: Sequence[int] = (24, 20, 5)) -> Path:
    """`root/images/NUMBER.nii.gz` with `root/masks/NUMBER.nii.gz`, which label a bright block, and `classes.txt`."""
    rng = np.random.RandomState(0)
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    (root / "classes.txt").write_text("background\ntumour\n")
    for number in range(count):
        labels = np.zeros(size, np.uint8)
        x, y = rng.randint(2, 10, 2)
        labels[x : x + 8, y : y + 8, 1:] = 1
        values = (rng.randint(0, 100, size) + 300 * labels).astype(np.int16)
        for folder, array in (("images", values), ("masks", labels)):
            (root / folder / f"{number}.nii.gz").write_bytes(gzip.compress(nifti(array, LPS), 1))
    return root
