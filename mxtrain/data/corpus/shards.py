"""Memory-mapped arrays of records: tokens, labels, audio features and other prepared data of a task.

    <folder>/manifest.json         key, facts, and size and SHA-256 of every block of every file
    <folder>/<array>.values        the values of all records, concatenated
    <folder>/<array>.begin         for a ragged array: the offset of each record, and the end of the last one (int64)

A block is a part of a file that was synced to the disk by one commit. An interrupted writer continues after the last
block.

Files become records of text, keyed by their content; records become tokens, keyed by the first key and the tokenizer.
Length, mask and split are not part of a key, because samples are framed when a batch is read. A folder counts only if
its manifest exists, which is written last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from mxtrain.files.cache import open_own, read_sealed, write_sealed
from mxtrain.files.durable import CHUNK_BYTES, create_file, fsync_directory, open_file, write_all
from mxtrain.runtime.cores import usable_cores

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

log = logging.getLogger(__name__)
MANIFEST, JOURNAL = "manifest.json", "journal.json"
MAX_REHASHED_BYTES = 256 << 20
"""Files up to this size are hashed whenever they are opened; larger ones only if their times or inode have changed."""


class ArrayForm(NamedTuple):
    """Dtype and shape of an array.

    Attributes:
        dtype: name of a NumPy dtype, e.g. uint16.
        shape: shape of one value, e.g. (80,) for a frame of features; () for a number.
        is_ragged: if True, a record has any number of values, e.g. tokens; else exactly one.
    """

    dtype: str
    shape: Tuple[int, ...] = ()
    is_ragged: bool = False


class Ragged(NamedTuple):
    """Concatenated rows of different lengths, in memory or mapped from a file.

    Attributes:
        value: the values of all rows.
        begin: offset of each row in `value`, and the end of the last one.
    """

    value: np.ndarray
    begin: np.ndarray

    @property
    def length(self) -> np.ndarray:
        """Returns the number of values of each row."""
        return np.diff(self.begin)


class DamagedShards(Exception):
    """Prepared data differs from what was written, and has to be prepared again."""


class Shards:
    """Prepared records, open for reading. Arrays are memory-mapped, so the kernel can evict their pages.

    Attributes:
        key: hash of the sources and settings; the same key means the same content.
        folder: folder of the files.
        facts: JSON values of the whole dataset, e.g. names of classes.
    """

    def __init__(self, folder: Path, manifest: JsonObject) -> None:
        self.folder = folder
        self.key: str = manifest["key"]
        self.facts: JsonObject = manifest["facts"]
        self._records: int = manifest["records"]
        self._forms = {name: ArrayForm(form[0], tuple(form[1]), form[2]) for name, form in manifest["arrays"].items()}

    def __len__(self) -> int:
        """Returns the number of records."""
        return self._records

    @property
    def num_bytes(self) -> int:
        """Returns the size on the disk."""
        return sum(entry.stat().st_size for entry in os.scandir(self.folder))

    def array(self, name: str) -> np.ndarray:
        """Returns an array, read-only: (records, ...), or (values, ...) if it is ragged."""
        form = self._forms[name]
        return _mapped(self.folder / f"{name}.values", np.dtype(form.dtype), form.shape)

    def offsets(self, name: str) -> np.ndarray:
        """Returns the offset of each record in a ragged array, and the end of the last one."""
        return _mapped(self.folder / f"{name}.begin", np.dtype(np.int64), ())

    def ragged(self, name: str) -> Ragged:
        """Returns a ragged array with its offsets."""
        return Ragged(self.array(name), self.offsets(name))

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Reads bytes `begin` to `end` of an array's values without mapping them: a pass over a large file would
        otherwise count all of it as this process's memory."""
        with open_own(self.folder / f"{name}.values") as file:
            return os.pread(file.fileno(), end - begin, begin)


def _mapped(path: Path, dtype: np.dtype, shape: Tuple[int, ...]) -> np.ndarray:
    with open_own(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.empty((0, *shape), dtype)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype).reshape(-1, *shape)


def open_shards(folder: Path, key: str) -> Optional[Shards]:
    """Opens the prepared data of a folder and verifies it; returns None if there is none.

    Raises:
        DamagedShards: a file differs from what was written, or the data has another key.
    """
    content = read_sealed(folder / MANIFEST)
    if content is None:
        if os.path.lexists(folder / MANIFEST):
            raise DamagedShards(f"{folder / MANIFEST} is damaged, or not yours alone")
        return None
    manifest = json.loads(content)
    if manifest["key"] != key:
        raise DamagedShards(f"{folder} holds data of another key")
    with ThreadPoolExecutor(usable_cores()) as pool:
        # hashlib releases Python's lock for large blocks, so files are hashed on all cores.
        checks = [
            pool.submit(_require_blocks, folder / name, written["blocks"], written["stamp"])
            for name, written in manifest["files"].items()
        ]
        for check in checks:
            check.result()  # raises the error of the file
    return Shards(folder, manifest)


def _require_blocks(path: Path, blocks: List[Tuple[int, str]], stamp: Optional[List[int]] = None) -> None:
    """Checks that a file starts with these blocks.

    Args:
        path: path of the file.
        blocks: size and SHA-256 of each block.
        stamp: times and inode of the complete file, which must end after the last block; None: more may follow.

    Raises:
        DamagedShards: a block is missing or has another checksum.
    """
    total = sum(size for size, _ in blocks)
    is_complete = stamp is not None
    try:
        with open_own(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size < total or (is_complete and status.st_size > total):
                raise DamagedShards(f"{path} has {status.st_size:,} bytes")
            # Hashing a large file at every start would take minutes: unchanged times and inode count as proof.
            if is_complete and status.st_size > MAX_REHASHED_BYTES and _stamp(status) == stamp:
                return
            for number, (size, sha256) in enumerate(blocks):
                if _digest_of_next(file.fileno(), size) != sha256:
                    raise DamagedShards(f"block {number} of {path} has another checksum")
    except OSError as error:
        raise DamagedShards(f"{path}: {error.strerror or error}") from error


def remove_tree(path: Path) -> None:
    """Removes a folder with its content, a file, or a link but not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _digest_of_next(fd: int, size: int) -> str:
    digest = hashlib.sha256()
    while size:
        chunk = os.read(fd, min(size, CHUNK_BYTES))
        if not chunk:
            break
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


def _stamp(status: os.stat_result) -> List[int]:
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


class BlockFile:
    """A file that is written in blocks. It continues after existing blocks, and truncates what follows them.

    Args:
        path: path of the file.
        blocks: size and SHA-256 of each existing block.
    """

    def __init__(self, path: Path, blocks: List[Tuple[int, str]]) -> None:
        self.path, self.blocks = path, blocks
        self._fd = open_file(path, os.O_WRONLY) if blocks else create_file(path, 0o600)
        size = sum(size for size, _ in blocks)
        os.ftruncate(self._fd, size)
        os.lseek(self._fd, size, os.SEEK_SET)
        self._hash, self._size = hashlib.sha256(), 0

    def write(self, values: np.ndarray) -> None:
        """Appends values. Hashing and writing release the GIL."""
        view = memoryview(np.ascontiguousarray(values).data).cast("B") if values.size else memoryview(b"")
        self._hash.update(view)
        self._size += len(view)
        write_all(self._fd, view)

    def end_block(self) -> None:
        """Syncs the written data to the disk and ends the block."""
        os.fsync(self._fd)
        if self._size:
            self.blocks.append((self._size, self._hash.hexdigest()))
            self._hash, self._size = hashlib.sha256(), 0

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def to_json(self) -> Mapping[str, Json]:
        """Returns the blocks, and times and inode that show later changes of the file."""
        return {"blocks": [list(block) for block in self.blocks], "stamp": _stamp(os.stat(self.path))}


class ShardWriter:
    """Writes records into a folder, and continues where an interrupted writer has stopped.

    Attributes:
        records: number of records written so far.
    """

    def __init__(self, folder: Path, key: str, forms: Mapping[str, ArrayForm]) -> None:
        """Continues after the last block of the same data, or starts from the beginning.

        Args:
            folder: folder to which only this process writes.
            key: key of the prepared data.
            forms: name -> form of each array.

        Raises:
            OSError: the folder cannot be written.
        """
        self._folder, self._key, self._forms = folder, key, forms
        content = read_sealed(folder / JOURNAL)
        journal = json.loads(content) if content is not None else {}
        if journal.get("key") != key or not self._are_whole(journal["blocks"]):
            journal = {"records": 0, "ends": {}, "blocks": {}}
            for entry in list(os.scandir(folder)):
                remove_tree(Path(entry.path))
        self.records: int = journal["records"]
        self._ends: Dict[str, int] = {name: 0 for name, form in forms.items() if form.is_ragged}
        self._ends.update(journal["ends"])
        names = [f"{name}.values" for name in forms] + [
            f"{name}.begin" for name, form in forms.items() if form.is_ragged
        ]
        blocks = {name: [(size, sha256) for size, sha256 in journal["blocks"].get(name, ())] for name in names}
        self._files = {name: BlockFile(folder / name, blocks[name]) for name in names}
        if not any(blocks.values()):
            for name in self._ends:
                # Offsets begin with 0, so that record i lies between entries i and i + 1, the last one as well.
                self._files[f"{name}.begin"].write(np.zeros(1, np.int64))

    def _are_whole(self, blocks: Mapping[str, List[Tuple[int, str]]]) -> bool:
        """Returns True if the files contain the blocks of a journal, so that records can be appended to them."""
        try:
            for name, blocks_of_file in blocks.items():
                _require_blocks(self._folder / name, blocks_of_file)
        except DamagedShards as error:
            log.warning("%s: preparing starts from the beginning", error)
            return False
        return True

    def append(self, count: int, values: Mapping[str, np.ndarray], lengths: Mapping[str, np.ndarray] = {}) -> None:
        """Appends records.

        Args:
            count: number of records.
            values: array -> one value per record; for a ragged array the concatenated values of these records.
            lengths: ragged array -> number of values of each record.
        """
        for name, form in self._forms.items():
            array = np.asarray(values[name], form.dtype)
            length = int(lengths[name].sum()) if form.is_ragged else count
            assert array.shape == (length, *form.shape), (name, array.shape, length)
            self._files[f"{name}.values"].write(array)
            if form.is_ragged:
                assert len(lengths[name]) == count, name
                end_N = self._ends[name] + np.cumsum(lengths[name], dtype=np.int64)
                self._files[f"{name}.begin"].write(end_N)
                self._ends[name] = int(end_N[-1]) if count else self._ends[name]
        self.records += count

    def commit(self) -> None:
        """Syncs the appended records to the disk. An interrupted preparation continues after them."""
        for file in self._files.values():
            file.end_block()
        blocks = {name: file.blocks for name, file in self._files.items()}
        journal = {"key": self._key, "records": self.records, "ends": self._ends, "blocks": blocks}
        write_sealed(self._folder / JOURNAL, json.dumps(journal).encode())

    def finish(self, facts: JsonObject, what: str = "") -> None:
        """Writes the manifest, which makes the records valid.

        Args:
            facts: see `Shards`.
            what: description of the data, for `data cache`.
        """
        for file in self._files.values():
            file.end_block()
        manifest = {
            "key": self._key,
            "what": what,
            "facts": facts,
            "records": self.records,
            "arrays": self._forms,
            "files": {name: file.to_json() for name, file in self._files.items()},
        }
        write_sealed(self._folder / MANIFEST, json.dumps(manifest).encode())
        (self._folder / JOURNAL).unlink(missing_ok=True)
        fsync_directory(self._folder)

    def close(self) -> None:
        """Closes all files."""
        for file in self._files.values():
            file.close()
