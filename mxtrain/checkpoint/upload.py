"""Copies the checkpoints of a run to an object store, so that another machine can continue the run.

    ADDRESS/step-00000100/...

The address holds the same checkpoints as the folder, under the same names. `manifest.json` is written last and removed
first: a checkpoint with a manifest is complete, even if the process was killed.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Dict, List, Tuple

from mxtrain.checkpoint.contents import MANIFEST
from mxtrain.checkpoint.folder import NAME, TEMPORARY, scan
from mxtrain.checkpoint.verified import read_file
from mxtrain.errors import CheckpointError, DamagedCheckpoint, MxtrainError
from mxtrain.files.durable import create_file, fsync_directory
from mxtrain.files.object_store.address import Address, parse_address, require_local_name

log = logging.getLogger("mxtrain")

RemoteCheckpoints = Dict[str, Dict[str, Tuple[int, str]]]
"""Name -> file -> size and ETag."""


class CheckpointUpload:
    """Uploads the checkpoints of a folder in a background thread.

    Args:
        address: address of the checkpoints.
    """

    def __init__(self, address: str) -> None:
        self.address = parse_address(address)
        self._thread = threading.Thread()
        self._is_due = False
        self._lock = threading.Lock()

    def update(self, directory: Path) -> None:
        """Starts an upload that makes the address equal to the folder. If an upload is under way, another one follows
        it, which uploads only the checkpoints that the folder still holds by then."""
        with self._lock:
            self._is_due = True
            if not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, args=(directory,), name="mxtrain-upload")
                self._thread.start()

    def wait(self) -> None:
        """Waits for the upload under way. Call it at the end of a run: the interpreter shuts down its thread pools
        before it waits for other threads, and without the pools no connection to the store can be made."""
        thread = self._thread  # replaced when it ends
        if thread.is_alive():
            log.info("waiting for the upload of checkpoints to %s", self.address)
            thread.join()

    def _run(self, directory: Path) -> None:
        while True:
            with self._lock:
                if not self._is_due:
                    self._thread = threading.Thread()  # `update` starts the next one
                    return
                self._is_due = False
            try:
                upload(directory, self.address)
            except (MxtrainError, OSError) as error:  # a failed upload must not end training
                log.warning(
                    "checkpoint.upload: %s The checkpoint is kept in '%s' and is uploaded with the next one.",
                    error,
                    directory,
                )


def upload(directory: Path, address: Address) -> None:
    """Makes an address hold the checkpoints of a folder.

    Raises:
        StoreError: the store refuses, or does not answer.
        OSError: a checkpoint cannot be read.
    """
    from mxtrain.files.object_store.store import store_of

    store = store_of(address.scheme)
    remote = _remote_checkpoints(address)
    for entry in reversed(scan(directory)):
        name = entry.path.name
        if MANIFEST in remote.get(name, {}):
            continue
        start_s = time.monotonic()
        # A checkpoint that is not kept any more may be removed meanwhile.
        with suppress(FileNotFoundError):
            files = [path for path in sorted(entry.path.rglob("*")) if path.is_file()]
            for path in sorted(files, key=lambda path: path.name == MANIFEST):
                store.write_file(address.below(f"{name}/{path.relative_to(entry.path).as_posix()}"), path)
            log.info("checkpoint %s is in %s (%.1fs)", name, address, time.monotonic() - start_s)
    kept = {entry.path.name for entry in scan(directory)}
    for name in sorted(set(remote) - kept):
        for file in sorted(remote[name], key=lambda file: file != MANIFEST):
            store.remove(address.below(f"{name}/{file}"))


def download(address: Address, remote: RemoteCheckpoints, directory: Path) -> List[str]:
    """Downloads the complete checkpoints at an address that are not in a folder; returns their names.

    Args:
        address: address of the checkpoints.
        remote: checkpoints at the address.
        directory: the folder.

    Raises:
        StoreError: the store refuses, or does not answer.
        CheckpointError: they cannot be written.
    """
    from mxtrain.files.object_store.store import store_of

    store = store_of(address.scheme)
    here = {entry.path.name for entry in scan(directory)}
    names = sorted(name for name, files in remote.items() if MANIFEST in files and name not in here)
    for name in names:
        temporary = directory / f"{TEMPORARY}download-{name}-{os.getpid()}"
        try:
            for file, (size, etag) in sorted(remote[name].items()):
                path = temporary / file
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = create_file(path)
                try:
                    store.copy_to(address.below(f"{name}/{file}"), etag, size, descriptor)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            os.rename(temporary, directory / name)
            fsync_directory(directory)
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint {address}/{name} cannot be written to '{directory}': {error.strerror or error}."
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return names


def fetch_checkpoints(text: str, directory: Path, starts_over: bool) -> None:
    """Downloads checkpoints of an earlier machine before a run looks for the one to continue from.

    Args:
        text: `checkpoint.upload`.
        directory: folder of the run's checkpoints.
        starts_over: True if the run does not continue.

    Raises:
        StoreError: the store refuses, or does not answer.
        CheckpointError: the run starts over, and its checkpoints would replace others.
    """
    from mxtrain.files.object_store.store import store_of

    address = parse_address(text)
    remote = _remote_checkpoints(address)
    if starts_over and remote:
        raise CheckpointError(
            f"checkpoint.upload={text}: {max(remote)} of an earlier run is there, and a run that starts over would "
            "replace it. Choose another address, or remove it."
        )
    for entry in scan(directory):
        size, etag = remote.get(entry.path.name, {}).get(MANIFEST, (0, ""))
        try:
            own_manifest = read_file(entry.path / MANIFEST)
        except DamagedCheckpoint:  # the search for the one to continue from reports it
            continue
        manifest = address.below(f"{entry.path.name}/{MANIFEST}")
        if etag and store_of(address.scheme).content(manifest, etag, size) != own_manifest:
            raise CheckpointError(
                f"checkpoint.upload={text}: {entry.path.name} is there with other content than in '{directory}', so "
                "it is that of another run. Choose another address."
            )
    names = download(address, remote, directory)
    if names:
        log.info("%s: downloaded from %s", ", ".join(names), address)


def _remote_checkpoints(address: Address) -> RemoteCheckpoints:
    """Returns the checkpoints at an address; other objects are ignored."""
    from mxtrain.files.object_store.store import list_objects

    found: RemoteCheckpoints = defaultdict(dict)
    for listed in list_objects(address):
        name, _, file = listed.key[len(address.prefix) :].partition("/")
        if file and NAME.match(name):
            require_local_name(address.with_key(listed.key))
            found[name][file] = listed.size, listed.etag
    return found
