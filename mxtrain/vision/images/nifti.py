"""Reads NIfTI-1 and NIfTI-2 volumes in one file, packed or not, as slices. Exported folders have a copy of this module.

Slices are shown as radiologists see them, and as DICOM stores them: the right of the patient is at the left, anterior
or superior at the top. Only NumPy is needed.

Source: https://nifti.nimh.nih.gov, nifti1.h and nifti2.h.
Legend: X, Y, Z axes of a stored volume, T its fourth axis, H height, W width of a slice.
"""

from __future__ import annotations

import hashlib
import math
import struct
import threading
import zlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.opening import MAX_PIXELS, ImageNeedsSetting, ImageTooLarge
from mxtrain.vision.images.volume_slice import as_labels, require_finite
from mxtrain.vision.images.window import (
    PERCENTILE,
    Window,
    linear_exact,
    percentile_range,
    scale_by_type,
    stretch,
)

ENDINGS = (".nii", ".nii.gz")
"""Extensions of volumes."""
HEAD_BYTES = 540
"""Number of unpacked bytes of a header of NIfTI-2, the longer one."""
HEAD_READ = 1 << 16
"""Number of bytes at the start of a file, packed or not, that contain its header."""
ANATOMICAL = ("sagittal", "coronal", "axial")
"""Directions of slices by the anatomical axis that is perpendicular: right, anterior, superior."""
STORED = ("i", "j", "k")
"""Directions of slices by the stored axis that is perpendicular."""
MAX_VOLUME_BYTES = 4 << 30
"""Largest unpacked size of a volume."""
MAX_TRAILING_BYTES = 64 << 20
"""Largest size of what follows the values in a packed file."""
_GZIP = b"\x1f\x8b"
_PERCENTILE_VALUES = 1 << 20
"""Number of values of which percentiles are computed; more change only the third digit."""
_SQUARE = 0.01
"""Largest relative difference of the sides of a pixel that counts as square."""
_DTYPES = {
    2: "u1",
    4: "i2",
    8: "i4",
    16: "f4",
    64: "f8",
    256: "i1",
    512: "u2",
    768: "u4",
    1024: "i8",
    1280: "u8",
}
"""Code of the type of values -> NumPy's name of it."""
_TYPE_NAMES = {1: "bits", 32: "complex numbers", 128: "RGB", 1536: "float128", 1792: "complex numbers", 2304: "RGBA"}


@dataclass(frozen=True)
class NiftiHeader:
    """Header of a volume.

    Attributes:
        shape: sizes (X, Y, Z, T).
        dtype: type of the stored values, in the byte order of the file.
        offset: offset of the values in the unpacked file.
        slope, intercept: value = slope * stored value + intercept.
        bounds: values that the file says are black and white; None: it says nothing.
        spacing: distance of the values along X, Y and Z, in any unit.
        orientation: for right, anterior and superior: the stored axis along it, and 1 or -1 for its direction; None if
            the file does not say its orientation.
        affine_34: map from indices to millimetres, towards right, anterior and superior; None as above.
    """

    shape: Tuple[int, int, int, int]
    dtype: np.dtype
    offset: int
    slope: float
    intercept: float
    bounds: Optional[Tuple[float, float]]
    spacing: Tuple[float, float, float]
    orientation: Optional[Tuple[Tuple[int, int], ...]]
    affine_34: Optional[np.ndarray] = None

    @property
    def num_bytes(self) -> int:
        """Returns the number of bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def is_nifti(head: bytes) -> bool:
    """Returns True if unpacked bytes begin with a header of NIfTI, in one file or in two."""
    return head[344:347] in (b"n+1", b"ni1") or head[4:7] in (b"n+2", b"ni2")


def is_second_version(head: bytes) -> bool:
    """Returns True if an unpacked header is one of NIfTI-2."""
    return head[4:7] in (b"n+2", b"ni2")


def byte_order(head: bytes) -> str:
    """Returns the byte order of an unpacked header, "<" or ">", as in `struct`."""
    return "<" if head[:4] == struct.pack("<i", 540 if is_second_version(head) else 348) else ">"


def is_packed_nifti(content: bytes) -> bool:
    """Returns True if a file is a volume packed by gzip."""
    return content[:2] == _GZIP and is_nifti(unpacked_head(content))


def unpacked_head(content: bytes) -> bytes:
    """Returns the first `HEAD_BYTES` of a file, packed or not; nothing if it is damaged."""
    if content[:2] != _GZIP:
        return content[:HEAD_BYTES]
    try:
        return zlib.decompressobj(wbits=31).decompress(content[:HEAD_READ], HEAD_BYTES)
    except zlib.error:
        return b""


def read_header(begin: bytes) -> NiftiHeader:
    """Parses the header at the beginning of a file, packed or not.

    Raises:
        ValueError: there is none, or the volume is damaged, too large or of an unsupported kind.
    """
    head = unpacked_head(begin)
    if len(head) < 348 or not is_nifti(head):
        raise ValueError("it does not begin with a header of NIfTI, or is cut off")
    is_second = is_second_version(head)
    order = byte_order(head)
    if is_second and len(head) < HEAD_BYTES:
        raise ValueError("its header is cut off")

    def read(form: str, first: int, second: int) -> Tuple[Any, ...]:
        return struct.unpack_from(order + form, head, second if is_second else first)

    wide = (lambda form: form.replace("f", "d")) if is_second else (lambda form: form)
    if head[344:347] == b"ni1" or head[4:7] == b"ni2":
        raise ValueError("its values are in another file (.img): write header and values to one .nii file")
    dim = read("8q" if is_second else "8h", 40, 16)
    (code,) = read("h", 70, 12)
    pixdim = read(wide("8f"), 76, 104)
    (offset,) = read("q" if is_second else "f", 108, 168)
    slope, intercept = read(wide("2f"), 112, 176)
    high, low = read(wide("2f"), 124, 192)
    qform, sform = read("2i" if is_second else "2h", 252, 344)
    quaternion, corner = read(wide("6f"), 256, 352), read(wide("12f"), 280, 400)
    if code not in _DTYPES:
        kind = _TYPE_NAMES.get(code, f"of the unknown type {code}")
        raise ValueError(f"its values are {kind}, and whole numbers and floats are read")
    shape = _shape_of(dim)
    dtype = np.dtype(order + _DTYPES[code])
    if not slope or not math.isfinite(slope):
        slope, intercept = 1.0, 0.0
    affine_34 = np.array(corner).reshape(3, 4) if sform > 0 else _affine_of(quaternion, pixdim) if qform > 0 else None
    spacing = [abs(step) if step and math.isfinite(step) else 1.0 for step in pixdim[1:4]]
    orientation = None
    if affine_34 is not None:
        spacing, orientation = _oriented(affine_34)
    header = NiftiHeader(
        shape,
        dtype,
        int(offset) if math.isfinite(offset) else -1,
        float(slope),
        float(intercept) if math.isfinite(intercept) else 0.0,
        (float(low), float(high)) if low < high and math.isfinite(high - low) else None,
        (spacing[0], spacing[1], spacing[2]),
        orientation,
        affine_34,
    )
    if not HEAD_BYTES * is_second <= header.offset <= 1 << 30 or header.offset < 348:
        raise ValueError(f"its values begin at byte {header.offset:,}, which is none: it is damaged")
    if header.num_bytes > MAX_VOLUME_BYTES:
        raise ImageTooLarge(f"its values take {header.num_bytes:,} bytes, and at most {MAX_VOLUME_BYTES:,} are read")
    return header


def _shape_of(dim: Sequence[int]) -> Tuple[int, int, int, int]:
    """Returns the sizes (X, Y, Z, T) for the field `dim`, whose first number is that of the axes."""
    if not 1 <= dim[0] <= 7 or min(dim[1 : dim[0] + 1]) < 1:
        raise ValueError(f"its sizes are {list(dim)}: it is damaged")
    sizes = [*dim[1 : dim[0] + 1], *[1] * (7 - dim[0])]
    if sum(size > 1 for size in sizes[3:]) > 1:
        raise ValueError(f"it has axes of the sizes {sizes[: dim[0]]}, and at most four are read")
    return sizes[0], sizes[1], sizes[2], math.prod(sizes[3:])


def _affine_of(quaternion: Sequence[float], pixdim: Sequence[float]) -> np.ndarray:
    """Returns the map (3, 4) from indices to millimetres of a quaternion (b, c, d) and an offset (x, y, z)."""
    b, c, d, *offset = quaternion
    a = math.sqrt(max(0.0, 1.0 - b * b - c * c - d * d))
    rotation_33 = np.array(
        [
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
        ]
    )
    steps = np.abs(pixdim[1:4]) * [1, 1, -1 if pixdim[0] < 0 else 1]
    return np.column_stack([rotation_33 * steps, offset])


def _oriented(affine_34: np.ndarray) -> Tuple[List[float], Tuple[Tuple[int, int], ...]]:
    """Returns the distances of values along the stored axes, and the stored axis and the direction that are nearest to
    right, anterior and superior."""
    linear_33 = affine_34[:, :3]
    spacing_3 = np.linalg.norm(linear_33, axis=0)
    if not np.isfinite(affine_34).all() or (spacing_3 < 1e-9).any() or abs(np.linalg.det(linear_33)) < 1e-12:
        raise ValueError("its map to millimetres (sform, qform) is not invertible: it is damaged")
    cosine_33 = np.abs(linear_33 / spacing_3)
    axis_of = {}
    # The axis that is nearest to a direction comes first, as in nibabel's canonical orientation.
    for axis in np.argsort(-cosine_33.max(axis=0), kind="stable").tolist():
        row = int(cosine_33[:, axis].argmax())
        cosine_33[row] = -1.0
        axis_of[row] = axis, 1 if linear_33[row, axis] > 0 else -1
    return spacing_3.tolist(), (axis_of[0], axis_of[1], axis_of[2])


@dataclass(frozen=True)
class _SliceView:
    """Placement of slices in a stored volume.

    Attributes:
        axes: stored axes of the number of a slice, its rows and its columns.
        steps: 1, or -1 if the stored axis is reversed, for each of them.
    """

    axes: Tuple[int, int, int]
    steps: Tuple[int, int, int]


def _slice_view(header: NiftiHeader, direction: str) -> _SliceView:
    if direction in STORED:
        number = STORED.index(direction)
        columns, rows = (axis for axis in range(3) if axis != number)
        return _SliceView((number, rows, columns), (1, 1, 1))
    if header.orientation is None:
        raise ImageNeedsSetting(
            "it does not say its orientation (qform_code and sform_code are 0), so that axial slices are unknown: type "
            "dataset.slice_axis=k for slices along its third axis, or i or j for the first or second one"
        )
    right, anterior, superior = header.orientation
    perpendicular, down, across = {
        "axial": (superior, anterior, right),
        "coronal": (anterior, superior, right),
        "sagittal": (right, superior, anterior),
    }[direction]
    # Rows lead to posterior or inferior, columns to left or posterior.
    return _SliceView(
        (perpendicular[0], down[0], across[0]),
        (perpendicular[1], -down[1], -across[1]),
    )


class NiftiVolume:
    """A volume, as slices.

    Attributes:
        header: its header.
        num_slices: number of slices.
        size: (width, height) of a slice with square pixels: of axes with different spacings the coarser one is
            enlarged.
        own_channels: number of volumes along T, or 3 for one, which is grey; see `PlaneReader`.
        num_values: number of values.
    """

    def __init__(self, header: NiftiHeader, direction: str, load: Callable[[], np.ndarray]) -> None:
        """Chooses the slices; reads no values.

        Args:
            header: header of the volume.
            direction: one of `ANATOMICAL` or `STORED`.
            load: returns the stored values (X, Y, Z, T).

        Raises:
            ImageNeedsSetting: the file does not say its orientation.
            ImageTooLarge: a slice is too large.
        """
        self.header, self._load, self._view = header, load, _slice_view(header, direction)
        self.own_channels = 3 if header.shape[3] == 1 else header.shape[3]
        self.num_values = math.prod(header.shape)
        number, rows, columns = self._view.axes
        self.num_slices = header.shape[number]
        self._plain_size = (header.shape[columns], header.shape[rows])
        steps = header.spacing[columns], header.spacing[rows]
        sides = [length * step / min(steps) for length, step in zip(self._plain_size, steps)]
        is_square = max(steps) / min(steps) <= 1 + _SQUARE
        if max(sides) > MAX_PIXELS:
            raise ImageTooLarge(f"its pixels are {max(steps) / min(steps):.3g} times as long as wide: it is damaged")
        self.size = self._plain_size if is_square else (round(sides[0]), round(sides[1]))
        if self.size[0] * self.size[1] > MAX_PIXELS:
            raise ImageTooLarge(
                f"a slice has {self.size[0]} x {self.size[1]} pixels, and at most {MAX_PIXELS:,} are read"
            )
        self._lock = threading.Lock()
        self._digest = b""
        self._ranges: Optional[List[Tuple[float, float]]] = None

    def stored(self, number: int) -> np.ndarray:
        """Returns the stored values of a slice, (T, H, W), before they are rescaled and made square.

        Raises:
            ValueError: the file is damaged.
        """
        (axis, rows, columns), (step, row_step, column_step) = self._view.axes, self._view.steps
        index = number if step > 0 else self.num_slices - 1 - number
        slice_ABT = np.take(self._load(), index, axis)
        slice_THW = np.moveaxis(slice_ABT, -1, 0)
        if rows > columns:
            slice_THW = slice_THW.transpose(0, 2, 1)
        return slice_THW[:, ::row_step, ::column_step]

    def put_slice(self, stored_XYZ: np.ndarray, number: int, plane_HW: np.ndarray) -> None:
        """Writes a slice with square pixels, such as a mask, to where `stored` reads it.

        Args:
            stored_XYZ: the volume, which is changed.
            number: number of the slice.
            plane_HW: values of the slice in the shape of `size`, of which the nearest ones are taken.
        """
        (axis, rows, columns), (step, row_step, column_step) = self._view.axes, self._view.steps
        row_h, column_w = (
            ((np.arange(length) + 0.5) * side / length).astype(np.int64)
            for length, side in zip(self._plain_size[::-1], plane_HW.shape)
        )
        plain_hw = plane_HW[row_h][:, column_w][::row_step, ::column_step]
        index = number if step > 0 else self.num_slices - 1 - number
        np.moveaxis(stored_XYZ, axis, 0)[index] = plain_hw.T if rows > columns else plain_hw

    def values(self, number: int) -> np.ndarray:
        """Returns the values of a slice, (T, H, W) float64."""
        return self.rescaled(self.stored(number))

    def rescaled(self, stored: np.ndarray) -> np.ndarray:
        """Converts stored values to values, float64."""
        return stored.astype(np.float64) * self.header.slope + self.header.intercept

    def ranges(self) -> List[Tuple[float, float]]:
        """Returns the percentiles of the window `percentile`, of each volume along T. They are those of the whole
        volume, so that a tissue is as bright in all slices.

        Raises:
            ValueError: values are not finite.
        """
        with self._lock:
            if self._ranges is None:
                stored_XYZT = self._load()
                ranges = []
                for part_XYZ in np.moveaxis(stored_XYZT, -1, 0):
                    flat = part_XYZ.ravel(order="K")
                    step = max(1, flat.size // _PERCENTILE_VALUES)
                    while math.gcd(step, flat.size) > 1:  # a divisor of a side would take few planes only
                        step += 1
                    value = self.rescaled(flat[::step])
                    require_finite(value)
                    ranges.append(percentile_range(value))
                self._ranges = ranges
            return self._ranges

    def corners(self) -> Optional[np.ndarray]:
        """Returns the centres of the first and last voxels along each axis of the view, (8, 3) in millimetres; None if
        the file does not say its place."""
        if self.header.affine_34 is None:
            return None
        index_83 = np.zeros((8, 3))
        for column, (axis, step) in enumerate(zip(self._view.axes, self._view.steps)):
            ends = [0, self.header.shape[axis] - 1][::step]
            index_83[:, axis] = [ends[number >> column & 1] for number in range(8)]
        return index_83 @ self.header.affine_34[:, :3].T + self.header.affine_34[:, 3]

    def identity(self) -> bytes:
        """Returns a digest of all stored values, by which volumes are compared."""
        with self._lock:
            if not self._digest:
                values = np.ascontiguousarray(self._load().reshape(-1, order="F"))
                self._digest = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
            return self._digest

    def planes(self, number: int, window: Window, channels: int) -> List[np.ndarray]:
        """Decodes a slice: a channel for each volume of the fourth axis; see `PlaneReader`. Slice 0 is the most
        inferior, posterior or left one, or the first stored one."""
        stored_THW = self.stored(number)
        if self.own_channels == 3 and len(stored_THW) == 3 and channels != 3:
            raise ImageNeedsSetting(f"it has 3 volumes, and dataset.channels={channels}: type dataset.channels=3")
        return [self.squared(self._shown(plane_HW, number, part, window)) for part, plane_HW in enumerate(stored_THW)]

    def _shown(self, stored_HW: np.ndarray, number: int, part: int, window: Window) -> np.ndarray:
        """Maps values to 0 to 255.

        Args:
            stored_HW: stored values.
            number: number of the slice.
            part: number of the volume along T.
            window: see `Decoding.window`.
        """
        header = self.header
        is_plain = (header.slope, header.intercept) == (1.0, 0.0)
        is_byte = is_plain and header.dtype == np.uint8
        if window == "auto" and header.bounds is None and not is_byte:
            value = self.rescaled(stored_HW)
            raise ImageNeedsSetting(
                f"its values, from {value.min():g} to {value.max():g} in slice {number}, have no scale: "
                "type dataset.window=percentile, dataset.window=[CENTRE,WIDTH], or the name of a window of CT, e.g. "
                "dataset.window=lung"
            )
        if is_byte and window in ("auto", "full") and (window == "full" or not header.bounds):
            return stored_HW
        value_HW = self.rescaled(stored_HW)
        require_finite(value_HW)
        if window == PERCENTILE:
            shown_HW = stretch(value_HW, self.ranges()[part])
        elif window == "auto":
            assert header.bounds is not None
            shown_HW = stretch(value_HW, header.bounds)
        elif isinstance(window, str):
            is_integer = is_plain and header.dtype.kind in "ui"
            scaled = stored_HW if is_integer else value_HW
            shown_HW = scale_by_type(scaled, 8 * header.dtype.itemsize, header.dtype.kind == "i")
        else:
            shown_HW = linear_exact(value_HW, *window)
        return shown_HW.astype(np.float32)

    def labels(self, number: int) -> np.ndarray:
        """Returns the labels of a slice, (H, W) with square pixels, as uint8 or int32.

        Raises:
            ValueError: values are not whole numbers from 0 to 65,535, or there are several volumes.
        """
        if self.header.shape[3] > 1:
            raise ValueError(f"it has {self.header.shape[3]} volumes, and a mask has one")
        (value_HW,) = self.values(number)
        return self.squared(as_labels(value_HW), is_nearest=True)

    def squared(self, plane_HW: np.ndarray, is_nearest: bool = False) -> np.ndarray:
        """Returns a plane with square pixels."""
        if self.size == self._plain_size:
            return np.ascontiguousarray(plane_HW)
        from PIL import Image

        image = Image.fromarray(np.ascontiguousarray(plane_HW))
        return np.asarray(image.resize(self.size, Image.NEAREST if is_nearest else Image.BILINEAR))


def distance_of_corners(one: NiftiVolume, other: NiftiVolume) -> float:
    """Returns the largest distance between the corners of two volumes of the same size, in millimetres; 0 if one of
    them does not say its place."""
    corners = [volume.corners() for volume in (one, other)]
    if corners[0] is None or corners[1] is None:
        return 0.0
    return float(np.linalg.norm(corners[0] - corners[1], axis=1).max())


def values_in(content: bytes, header: NiftiHeader) -> np.ndarray:
    """Returns the stored values (X, Y, Z, T) in the content of a file, packed or not.

    Raises:
        ValueError: the file is cut off, or its packed content is damaged.
    """
    end = header.offset + header.num_bytes
    if content[:2] == _GZIP:
        content = _unpacked(content, end)
    if len(content) < end:
        raise ValueError(f"it is cut off: its values end at byte {end:,}, and it has {len(content):,}")
    return np.ndarray(header.shape, header.dtype, content, header.offset, order="F")


def _unpacked(packed: bytes, end: int) -> bytes:
    """Returns the first bytes of a file packed by gzip, and checks the rest, whose end has the checksum.

    Raises:
        ValueError: the file is damaged or cut off, or has more than `MAX_TRAILING_BYTES` behind its values.
    """
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(packed, end)
        for _ in range(MAX_TRAILING_BYTES >> 20):
            if unpacker.eof or not unpacker.unconsumed_tail:
                break
            unpacker.decompress(unpacker.unconsumed_tail, 1 << 20)
    except zlib.error as error:
        raise ValueError("its packed content is damaged (gzip)") from error
    if len(content) == end and not unpacker.eof:
        raise ValueError("its packed content does not end behind its values: it is cut off or damaged (gzip)")
    return content


def open_volume(content: bytes, direction: str) -> NiftiVolume:
    """Opens the content of a file.

    Raises:
        ValueError: it is not a volume, or is damaged, too large or of an unsupported kind.
    """
    header = read_header(content)
    loaded: Dict[str, np.ndarray] = {}

    def load() -> np.ndarray:
        if not loaded:
            loaded["values"] = values_in(content, header)
        return loaded["values"]

    return NiftiVolume(header, direction, load)
