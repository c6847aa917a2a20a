"""Reads objects by position, through the cache on the disk."""

from __future__ import annotations

import concurrent.futures
import hashlib
import io
import os
import threading
from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Set, Tuple, Union

from mxtrain.files.cache import ANOTHER_DISK
from mxtrain.files.object_store.address import Address, StoreError
from mxtrain.files.object_store.content_cache import BLOCK_BYTES, CACHE_SIZE, ContentCache
from mxtrain.files.object_store.store import store_of

_BLOCKS_AHEAD = 8
"""Blocks that are requested before a sequential reader needs them: more than 20 ms of any link up to 3 Gbit/s."""
_SEQUENTIAL_STEP = 2
"""Threads that share a sequence do not read it in exact order."""
_MAX_PREFETCHED = 64
"""Largest number of requests for expected blocks at the same time, over all readers."""
WHOLE = "whole"


@dataclass(frozen=True)
class StoredObject:
    """An object as it was listed.

    Attributes:
        address: its address.
        size: its size in bytes.
        etag: its ETag.
        endpoint: endpoint of its store; empty = that of the library.
    """

    address: Address
    size: int
    etag: str
    endpoint: str

    @property
    def cache_name(self) -> str:
        """Returns its name in the cache, another one for each content."""
        facts = "\0".join((self.endpoint, str(self.address), self.etag, str(self.size)))
        return hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()


_pending: Dict[Tuple[str, int], concurrent.futures.Future] = {}
_PENDING = threading.Lock()


class ObjectReader:
    """Reads ranges of an object from any thread.

    Args:
        stored: the object.
        cache: its content on the disk.
    """

    def __init__(self, stored: StoredObject, cache: ContentCache) -> None:
        self.stored, self._cache = stored, cache
        self._name = stored.cache_name
        self._last_block = -1
        self._received = -1, b""
        # Blocks that were found on the disk: looking for them for each record takes longer than reading it. A block
        # that was removed since is requested when it is read.
        self._present: Set[int] = set()

    @property
    def size(self) -> int:
        """Returns the size of the object in bytes."""
        return self.stored.size

    def read(self, length: int, position: int) -> bytes:
        """Returns bytes from a position on; fewer at the end of the object, as `os.pread`.

        Raises:
            StoreError: the object was changed, or the store does not answer.
        """
        end = min(position + length, self.size)
        if end <= position:
            return b""
        first, last = position // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        self._read_ahead(first, last)
        parts: List[bytes] = []
        for block in range(first, last + 1):
            start = block * BLOCK_BYTES
            parts.append(self._range(block, max(position - start, 0), min(end - start, BLOCK_BYTES)))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def prefetch(self, ranges: Iterable[Tuple[int, int]]) -> None:
        """Requests the blocks of ranges (position, length) that will be read soon, all at the same time."""
        for position, length in ranges:
            end = min(position + length, self.size)
            for block in range(position // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
                self._prefetch_block(block)

    def _read_ahead(self, first: int, last: int) -> None:
        is_sequential = 0 <= first - self._last_block <= _SEQUENTIAL_STEP
        moved = last != self._last_block
        self._last_block = last
        if moved and (is_sequential or last > first):
            ahead = _BLOCKS_AHEAD if is_sequential else last - first
            for block in range(first, min(first + ahead + 1, -(-self.size // BLOCK_BYTES))):
                self._prefetch_block(block)

    def _prefetch_block(self, block: int) -> None:
        # A block that is requested early is only kept on the disk. If the disk cannot hold it, it would be read twice.
        if not self._cache.is_writable or len(_pending) >= _MAX_PREFETCHED:
            return
        if block in self._present:
            return
        if self._cache.has(self._name, str(block), self._block_size(block)):
            self._present.add(block)
        else:
            self._request(block)

    def _block_size(self, block: int) -> int:
        return min(BLOCK_BYTES, self.size - block * BLOCK_BYTES)

    def _range(self, block: int, begin: int, end: int) -> bytes:
        content = self._cache.read(self._name, str(block), self._block_size(block), begin, end)
        if content is not None:
            return content
        number, received = self._received
        if number != block:
            # Kept in memory for the next record, because the disk may be full.
            received = self._request(block).result()
            self._received = block, received
        return received[begin:end]

    def _request(self, block: int) -> concurrent.futures.Future:
        """Requests a block, unless another thread has."""
        key = (self._name, block)
        with _PENDING:
            future = _pending.get(key)
            if future is None:
                start = block * BLOCK_BYTES
                future = store_of(self.stored.address.scheme).read(
                    self.stored.address,
                    self.stored.etag,
                    start,
                    start + self._block_size(block),
                    lambda content: self._cache.write(self._name, str(block), content),
                )
                _pending[key] = future
                future.add_done_callback(lambda _: _pending.pop(key, None))
        return future

    def local_copy(self) -> str:
        """Returns the path of a local file with the content of the object, for libraries that read files.

        Raises:
            StoreError: the object was changed, the store does not answer, or the disk has no room for it.
        """
        part = "0" if 0 < self.size <= BLOCK_BYTES else WHOLE
        path = self._cache.path(self._name, part)
        if part != WHOLE:
            self.read(self.size, 0)
        if self._cache.has(self._name, part, self.size):
            return path
        if self.size > self._cache.allowed:
            raise StoreError(
                f"'{self.stored.address}' has {self.size:,} bytes and is read as a whole, and the folder "
                f"'{self._cache.folder}' may hold {self._cache.allowed:,}. Set {CACHE_SIZE} to more gigabytes, free "
                f"some space, or {ANOTHER_DISK}."
            )
        try:
            with self._cache.new_file(self._name, part, self.size) as descriptor:
                # Not by blocks, which would be stored twice.
                store_of(self.stored.address.scheme).copy_to(
                    self.stored.address, self.stored.etag, self.size, descriptor
                )
        except OSError as error:
            raise StoreError(
                f"'{self.stored.address}' cannot be copied to '{self._cache.folder}': {error.strerror or error}. Free "
                f"some space, or {ANOTHER_DISK}."
            ) from error
        return path


class ObjectFile(io.RawIOBase):
    """An object as an open file. Its descriptor is that of a local copy, which is made when it is asked for.

    Args:
        reader: reader of the object.
    """

    def __init__(self, reader: ObjectReader) -> None:
        super().__init__()
        self._reader, self._position = reader, 0
        self._copy: Optional[int] = None
        self.name = str(reader.stored.address)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Union[bytearray, memoryview]) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        content = self._reader.read(len(view), self._position)
        view[: len(content)] = content
        self._position += len(content)
        return len(content)

    def fileno(self) -> int:
        if self._copy is None:
            self._copy = os.open(self._reader.local_copy(), os.O_RDONLY | os.O_CLOEXEC)
        return self._copy

    def close(self) -> None:
        if self._copy is not None:
            os.close(self._copy)
            self._copy = None
        super().close()
