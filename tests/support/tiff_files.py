"""TIFF files of several bands, written by tifffile. Import it after `pytest.importorskip("tifffile")`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import tifffile


def tiff(array: np.ndarray, **options: Any) -> bytes:
    """The bytes of a file.

    Args:
        array: (H, W, C), or (C, H, W) with planarconfig="separate".
        options: further arguments of `tifffile.imwrite`.
    """
    file = io.BytesIO()
    tifffile.imwrite(file, array, **{"photometric": "minisblack", "planarconfig": "contig", **options})
    return file.getvalue()


def planar(array_HWC: np.ndarray, **options: Any) -> bytes:
    """The bytes of a file with a plane for each band."""
    return tiff(np.ascontiguousarray(array_HWC.transpose(2, 0, 1)), planarconfig="separate", **options)


def write_bands(root: Path, count: int = 6, names: tuple = ("forest", "water"), bands: int = 5) -> Path:
    """16-bit images of 24 x 32 in `root/CLASS/NUMBER.tif`, planar and interleaved ones; the last band tells the classes
    apart."""
    rng = np.random.RandomState(0)
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.randint(0, 3000, (24, 32, bands)).astype(np.uint16)
            pixels[8:16, 8:24, -1] += 6000 * label
            content = planar(pixels, compression="lzw") if number % 2 else tiff(pixels)
            (root / name / f"{number}.tif").write_bytes(content)
    return root
