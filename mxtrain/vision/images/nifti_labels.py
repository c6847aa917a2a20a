"""Writes label volumes as NIfTI files that lie where other images lie. Only NumPy is needed.

Source: https://nifti.nimh.nih.gov, nifti1.h and nifti2.h.
Legend: X, Y, Z axes of a stored volume.
"""

from __future__ import annotations

import struct
from typing import Dict

import numpy as np

from mxtrain.vision.images.nifti import byte_order, is_second_version, unpacked_head

_CODES: Dict[str, int] = {"uint8": 2, "uint16": 512}
_MILLIMETRES, _SCANNER = 2, 1
"""Code of the unit, and of coordinates."""
_COPIED = {
    False: ((0, 4), (40, 56), (76, 92), (123, 124), (252, 328), (344, 348)),
    True: ((0, 12), (16, 80), (104, 136), (344, 496), (500, 504)),
}
"""Is it NIfTI-2? -> first and last offset of the fields that are copied: version, spacing with its unit, qform and
sform. Texts, which may name a patient, are not."""


def header_of(affine_34: np.ndarray) -> bytes:
    """Returns a header of NIfTI-1 with the version and the place of a volume alone, for `encode_labels`.

    Args:
        affine_34: map from indices to millimetres, towards right, anterior and superior.
    """
    head = bytearray(348)
    struct.pack_into("<i", head, 0, len(head))
    struct.pack_into("<8f", head, 76, 1.0, *np.linalg.norm(affine_34[:, :3], axis=0), 1.0, 0.0, 0.0, 0.0)
    head[123] = _MILLIMETRES
    struct.pack_into("<2h", head, 252, 0, _SCANNER)  # no quaternion: slices of a tilted gantry are sheared
    struct.pack_into("<12f", head, 280, *affine_34.ravel())
    head[344:348] = b"n+1\0"
    return bytes(head)


def encode_labels(begin: bytes, label_XYZ: np.ndarray) -> bytes:
    """Returns a label volume as an unpacked file, in the version and byte order of another volume.

    Args:
        begin: first bytes of the file of the volume, packed or not.
        label_XYZ: label of each of its voxels, uint8 or uint16.
    """
    head = unpacked_head(begin)
    is_second = is_second_version(head)
    order = byte_order(head)
    length = 544 if is_second else 352  # four bytes behind the header say that no extensions follow
    file = bytearray(length)
    for first, last in _COPIED[is_second]:
        file[first:last] = head[first:last]

    def put(form: str, offset_1: int, offset_2: int, *numbers: float) -> None:
        struct.pack_into(order + form, file, offset_2 if is_second else offset_1, *numbers)

    put("8q" if is_second else "8h", 40, 16, 3, *label_XYZ.shape, 1, 1, 1, 1)
    put("2h", 70, 12, _CODES[label_XYZ.dtype.name], 8 * label_XYZ.itemsize)
    put("q" if is_second else "f", 108, 168, length)
    put("2d" if is_second else "2f", 112, 176, 1.0, 0.0)
    return bytes(file) + label_XYZ.astype(label_XYZ.dtype.newbyteorder(order)).tobytes(order="F")
