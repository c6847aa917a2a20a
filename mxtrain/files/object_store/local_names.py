"""Local names of objects: a folder of empty files with the names and sizes of the objects at an address.

    CACHE/objects/trees/ID/s3/BUCKET/KEY

Code that lists, compares and joins paths works on this folder as on any other. The files are sparse and have no
content: `files.regular_files`, which opens all data, gets the object of a path in such a folder from here. ID is a
hash of the list, ETags included: a folder never changes, and an object that has changed since is an error.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Dict, List, Optional, Set, Tuple

from mxtrain import errors
from mxtrain.errors import did_you_mean
from mxtrain.files import regular_files
from mxtrain.files.cache import ANOTHER_DISK, own_folder, read_sealed, write_sealed
from mxtrain.files.durable import open_file
from mxtrain.files.object_store.address import (
    Address,
    StoreError,
    endpoint_of,
    parse_address,
    require_local_name,
)
from mxtrain.files.object_store.content_cache import ContentCache, user_cache
from mxtrain.files.object_store.reader import ObjectFile, ObjectReader, StoredObject
from mxtrain.files.object_store.store import Listed, list_objects, store_of
from mxtrain.files.unused_folders import locked_folder

log = logging.getLogger(__name__)

_LISTED_FOR_S = 60.0
"""Seconds for which a process reuses a list: data are opened several times in a row, but listed once."""
_KEPT_S = 30 * 86400.0
"""Seconds without use after which a folder is removed."""
_MANY, _SMALL_BYTES = 1000, 1 << 20
"""Records are recommended for at least so many objects of a smaller average size."""
_PATTERN = re.compile(r"[*?\[]")
_BUFFER_BYTES = 1 << 18


def local_path(text: str) -> str:
    """Returns the local name of an address, which is a file, a folder, or a pattern for files.

    Raises:
        StoreError: nothing is there, the store refuses, or it does not answer.
    """
    return _names().path_of(text)


class LocalNames:
    """Local names of objects, and their content.

    Args:
        folder: folder of the trees, which only this user can enter.
        cache: content of objects.
    """

    def __init__(self, folder: Path, cache: ContentCache) -> None:
        self.prefix = f"{folder}/"
        self._folder, self._cache = folder, cache
        self._paths: Dict[Tuple[str, Optional[str]], Tuple[float, str]] = {}
        self._announced: Set[str] = set()
        self._objects: Dict[str, Dict[str, StoredObject]] = {}

    def path_of(self, text: str) -> str:
        """See `local_path`."""
        address = parse_address(text)
        endpoint = endpoint_of(address.scheme)
        listed_s, path = self._paths.get((text, endpoint), (-_LISTED_FOR_S, ""))
        if time.monotonic() - listed_s < _LISTED_FOR_S:
            return path
        at, pattern = address, ""
        objects = list_objects(address)
        if not objects and _PATTERN.search(address.key):
            names = address.key.split("/")
            count = next(number for number, name in enumerate(names) if _PATTERN.search(name))
            at, pattern = address.with_key("/".join(names[:count])), "/".join(names[count:])
            objects = list_objects(at)
        if not objects:
            raise StoreError(self._nothing(address))
        path = os.path.join(self._make_tree(at, endpoint or "", objects), *filter(None, (at.key, pattern)))
        self._paths[text, endpoint] = time.monotonic(), path
        return path

    def _nothing(self, address: Address) -> str:
        above, _, name = address.key.rpartition("/")
        near = store_of(address.scheme).names(address.with_key(above)) if name else []
        return (
            f"There is nothing at '{address}': no object has this key, and none is in a folder of this name."
            f"{did_you_mean(name, near)}"
        )

    def _make_tree(self, address: Address, endpoint: str, objects: List[Listed]) -> str:
        """Makes the folder of a list, unless it exists, and returns the path of its bucket."""
        rows = sorted((listed.key, listed.size, listed.etag, int(listed.modified_s)) for listed in objects)
        facts = {"endpoint": endpoint, "scheme": address.scheme, "bucket": address.bucket, "objects": rows}
        content = json.dumps(facts).encode()
        name = hashlib.sha256(content).hexdigest()[:20]
        self._use(name, facts)
        total = sum(listed.size for listed in objects)
        if len(objects) >= _MANY and total / len(objects) < _SMALL_BYTES and name not in self._announced:
            self._announced.add(name)
            log.info(
                "'%s' has %s objects of %s bytes on average, and each is a request of its own. Images are read faster "
                "from records: python -m mxtrain data convert %s FOLDER to=records",
                address,
                f"{len(objects):,}",
                f"{total // len(objects):,}",
                address,
            )
        tree = self._folder / name
        if tree.is_dir() and self._list_of(name).is_file():
            for used in (tree, self._list_of(name)):
                with suppress(OSError):
                    os.utime(used)
        else:
            self._remove_old()
            try:
                self._write_tree(tree, content, address, rows)
            except OSError as error:
                raise StoreError(
                    f"The list of '{address}' cannot be written to '{self._folder}': {error.strerror or error}. Free "
                    f"some space, or {ANOTHER_DISK}."
                ) from error
        return f"{tree}/{address.scheme}/{address.bucket}"

    def _write_tree(self, tree: Path, content: bytes, address: Address, rows: List[Tuple[str, int, str, int]]) -> None:
        with locked_folder(self._folder, ".new-") as unfinished:
            bucket = unfinished / address.scheme / address.bucket
            bucket.mkdir(parents=True, mode=0o700)
            try:
                self._write_names(bucket, address, rows)
            except (FileExistsError, NotADirectoryError) as error:
                key = os.path.relpath(str(error.filename), bucket)
                raise StoreError(
                    f"'{address.scheme}://{address.bucket}/{key}' is an object and a folder of objects, which no local "
                    "folder can hold. Rename one of them."
                ) from None
            # Written in the unfinished folder: another process may write the same list at this moment.
            final = self._list_of(tree.name)
            write_sealed(unfinished / final.name, content)
            os.replace(unfinished / final.name, final)
            try:
                os.rename(unfinished, tree)
            except OSError:
                if not tree.is_dir():  # else another process has made it; the error differs between file systems
                    raise

    def _write_names(self, bucket: Path, address: Address, rows: List[Tuple[str, int, str, int]]) -> None:
        above = ""
        for key, size, _, modified_s in rows:
            require_local_name(address.with_key(key))
            path = f"{bucket}/{key}"
            if os.path.dirname(path) != above:
                above = os.path.dirname(path)
                os.makedirs(above, exist_ok=True)
            descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.ftruncate(descriptor, size)
                os.utime(descriptor, (modified_s, modified_s))
            finally:
                os.close(descriptor)

    def _list_of(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _remove_old(self) -> None:
        """Removes trees and lists that nobody has used for long."""
        for entry in list(os.scandir(self._folder)):
            with suppress(OSError):
                if time.time() - entry.stat().st_mtime < _KEPT_S:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)

    def _use(self, name: str, facts: dict) -> Dict[str, StoredObject]:
        scheme, bucket, endpoint = facts["scheme"], facts["bucket"], facts["endpoint"]
        found = self._objects.setdefault(name, {})
        for key, size, etag, _ in facts["objects"] if not found else ():
            found[f"{scheme}/{bucket}/{key}"] = StoredObject(Address(scheme, bucket, key), size, etag, endpoint)
        return found

    def reader(self, path: str) -> ObjectReader:
        """Returns a reader of the object of a local name.

        Raises:
            FileNotFoundError, IsADirectoryError: the name is that of no object.
            StoreError: the list of its folder was removed.
        """
        path = os.path.normpath(path)
        name, _, relative = path[len(self.prefix) :].partition("/")
        objects = self._objects.get(name)
        if objects is None:
            content = read_sealed(self._list_of(name))
            if content is None:
                raise StoreError(f"'{path}' is a local name of an object. Give the address of the object itself.")
            objects = self._use(name, json.loads(content))
        stored = objects.get(relative)
        if stored is None:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))  # raises, unless it is a folder
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return ObjectReader(stored, self._cache)

    # The other methods of `regular_files.RemoteFiles`.

    def open(self, path: str) -> BinaryIO:
        """Opens the object of a local name."""
        return io.BufferedReader(ObjectFile(self.reader(path)), _BUFFER_BYTES)

    def local_copy(self, path: str) -> str:
        """Returns the path of a file with the content of an object."""
        return self.reader(path).local_copy()


_made: Dict[str, LocalNames] = {}


def _names() -> LocalNames:
    """Returns the local names in the cache of this user, and lets `regular_files` read them.

    Raises:
        StoreError: the folder cannot be used.
    """
    try:
        folder = own_folder("objects", "trees").resolve()
        if str(folder) not in _made:
            _made[str(folder)] = LocalNames(folder, user_cache())
    except (OSError, RuntimeError, KeyError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(
            f"Object stores need a folder for their cache: {reason}. Free some space, or {ANOTHER_DISK}."
        ) from error
    names = _made[str(folder)]
    regular_files.set_remote_files(names)
    errors.show_addresses(names.prefix)
    return names
