"""Large arrays on their way to a file and back, a few rows at a time: a table of embeddings and its optimizer's state
may take most of the memory, and a second copy of them finds no room."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Callable, Iterator, Optional, Tuple, Union

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

PIECE_BYTES = 1 << 24


def row_ranges(shape: Tuple[int, ...], nbytes: int) -> Iterator[Tuple[int, int]]:
    """(begin, end) of rows that are `PIECE_BYTES` together, or one row."""
    step = max(1, PIECE_BYTES * shape[0] // max(nbytes, 1))
    for begin in range(0, shape[0], step):
        yield begin, min(begin + step, shape[0])


class ArrayInPieces:
    """An array that others hold. It must not be written to while it is read, and whoever reads it makes no copy of all.

    Args:
        shape: at least one dimension.
        dtype: of NumPy.
        read: (begin, end) -> a host copy of these rows.
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
        """Host copies of its rows, in order."""
        for begin, end in row_ranges(self.shape, self.nbytes):
            yield self._read(begin, end)

    def whole(self) -> np.ndarray:
        """A host copy of all of it."""
        return self._read(0, self.shape[0])


HostArray = Union["np.ndarray", ArrayInPieces]
"""Content of a checkpoint."""


def pieces_of(array: HostArray) -> Iterator[np.ndarray]:
    """Its rows, in order: an array of NumPy's is one piece."""
    if isinstance(array, ArrayInPieces):
        yield from array.pieces()
    else:
        yield array


def write_rows(given: np.ndarray, array: NDArray) -> None:
    """array[:] = given, so that neither is copied as a whole, nor stays in memory where it lies in a mapped file."""
    for begin, end in row_ranges(given.shape, given.nbytes):
        piece = given[begin:end]
        array[begin:end] = piece
        forget(piece)


def forget(array: np.ndarray) -> None:
    """Releases the pages of a mapped file that were read; later accesses read the file again."""
    mapped = _mapping(array)
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapping(array: np.ndarray) -> Optional[mmap.mmap]:
    """The mapped file that an array is a view into."""
    owner = array.base
    while owner is not None and not isinstance(owner, (memoryview, mmap.mmap)):
        owner = getattr(owner, "base", None)
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, mmap.mmap) else None
