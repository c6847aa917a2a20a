"""Copies large arrays to and from files a few rows at a time.

An embedding table and its optimizer state may take most of the memory, which then has no room for a second copy.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Callable, Iterator, Optional, Tuple, Union

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

PIECE_BYTES = 1 << 24


def row_ranges(shape: Tuple[int, ...], nbytes: int) -> Iterator[Tuple[int, int]]:
    """Yields (begin, end) of ranges of rows of about `PIECE_BYTES`, at least one row each."""
    # Pieces of 16 MB: small beside a table, large beside the cost of a call.
    step = max(1, PIECE_BYTES * shape[0] // max(nbytes, 1))
    for begin in range(0, shape[0], step):
        yield begin, min(begin + step, shape[0])


class ArrayInPieces:
    """An array of the run, such as a table on a device, that is read in pieces instead of copied as a whole.

    It must not be written to while it is read.

    Args:
        shape: shape of the array, at least one dimension.
        dtype: a NumPy dtype.
        read: returns a host copy of rows [begin, end).
    """

    def __init__(self, shape: Tuple[int, ...], dtype: np.dtype, read: Callable[[int, int], np.ndarray]):
        self.shape, self.dtype, self._read = shape, dtype, read

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def pieces(self) -> Iterator[np.ndarray]:
        """Yields host copies of its rows, in order."""
        for begin, end in row_ranges(self.shape, self.nbytes):
            yield self._read(begin, end)

    def whole(self) -> np.ndarray:
        """Returns a host copy of the whole array."""
        return self._read(0, self.shape[0])


HostArray = Union["np.ndarray", ArrayInPieces]
"""Content of a checkpoint."""


def pieces_of(array: HostArray) -> Iterator[np.ndarray]:
    """Yields the rows of an array in order; a NumPy array is one piece."""
    if isinstance(array, ArrayInPieces):
        yield from array.pieces()
    else:
        yield array


def write_rows(source: np.ndarray, array: NDArray) -> None:
    """Copies `source` into `array` in pieces. Pages of a mapped file are released after they were copied."""
    for begin, end in row_ranges(source.shape, source.nbytes):
        piece = source[begin:end]
        array[begin:end] = piece
        # Without it the pages of the file would count as this process's memory, beside the array
        # that they were copied to.
        forget(piece)


def forget(array: np.ndarray) -> None:
    """Releases the pages of a mapped file that were read; later accesses read the file again."""
    mapped = _mapping(array)
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapping(array: np.ndarray) -> Optional[mmap.mmap]:
    """Returns the mapped file of which an array is a view; None if there is none."""
    owner = array.base
    while owner is not None and not isinstance(owner, (memoryview, mmap.mmap)):
        owner = getattr(owner, "base", None)
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, mmap.mmap) else None
