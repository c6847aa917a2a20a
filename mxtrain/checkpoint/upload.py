"""Copies the checkpoints of a run to an object store, so that another machine can continue the run.

    ADDRESS/step-00000100/...
    ADDRESS/owner.json          the machine that was started last; others upload no more

The address holds the same checkpoints as the folder, under the same names. `manifest.json` is written last and removed
first: a checkpoint with a manifest is complete, even if the process was killed.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import secrets
import shutil
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from mxtrain.checkpoint.contents import MANIFEST, Checkpoint, read_checkpoint
from mxtrain.checkpoint.folder import NAME, TEMPORARY, discard, scan
from mxtrain.checkpoint.verified import read_file
from mxtrain.errors import CheckpointError, DamagedCheckpoint, MxtrainError
from mxtrain.files.durable import create_file, encode_json, fsync_directory
from mxtrain.files.json_form import problems_of
from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.files.object_store.address import Address, parse_address, require_local_name
from mxtrain.files.object_store.store import list_objects, store_of

log = logging.getLogger("mxtrain")

OWNER = "owner.json"
"""Object at the address that names the machine which uploads to it."""
_MAX_OWNER_BYTES = 1 << 12
_POLL_S = 0.1


class RemoteCheckpoints(NamedTuple):
    """The checkpoints at an address."""

    checkpoints: Dict[str, Dict[str, Tuple[int, str]]]
    """Name -> file -> size and ETag."""
    owner: Optional[Tuple[int, str]]
    """Size and ETag of `OWNER`; None if it does not exist."""


class CheckpointUpload:
    """Uploads the checkpoints of a folder in a background thread.

    The machine that was started last owns the address. Another one that still trains notices it before its next upload,
    and uploads no more.

    Args:
        address: address of the checkpoints.
    """

    def __init__(self, address: str) -> None:
        self.address = parse_address(address)
        self._session = secrets.token_hex(16)
        self._owns = self._is_superseded = False
        self._complete: Set[str] = set()  # names of checkpoints that are there as they are here
        self._directory = Path()
        self._thread = threading.Thread()
        self._is_due = False
        self._lock = threading.Lock()

    def update(self, directory: Path) -> None:
        """Starts an upload that makes the address equal to the folder. If an upload is under way, another one follows
        it, which uploads only the checkpoints that the folder still holds by then."""
        with self._lock:
            self._is_due, self._directory = True, directory
            if not self._thread.is_alive():
                # A daemon, because `wait` waits for it, and may give up.
                self._thread = threading.Thread(target=self._run, name="mxtrain-upload", daemon=True)
                self._thread.start()

    def wait(self, seconds_left: Callable[[], float] = lambda: math.inf) -> None:
        """Waits for the upload under way, and reports what is uploaded. Call it at the end of a run: the interpreter
        shuts down its thread pools before it waits for other threads, and without the pools no connection to the store
        can be made.

        Args:
            seconds_left: returns the seconds until the process must end, which a signal may shorten meanwhile.
        """
        thread = self._thread  # replaced when it ends
        if not thread.is_alive():
            return
        log.info("waiting for the upload of checkpoints to %s; complete there: %s", self.address, self._list_complete())
        while thread.is_alive() and seconds_left() > 0:
            thread.join(_POLL_S)
        if thread.is_alive():
            names = [entry.path.name for entry in scan(self._directory) if entry.path.name not in self._complete]
            log.warning(
                "checkpoint.upload: the time of cluster.grace was over before %s could be uploaded to %s; complete "
                "there: %s. All are kept in '%s', and the next upload of this run directory makes up for it.",
                ", ".join(names) or "all",
                self.address,
                self._list_complete(),
                self._directory,
            )

    def _list_complete(self) -> str:
        return ", ".join(sorted(self._complete)) or "none"

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._is_due or self._is_superseded:
                    self._thread = threading.Thread()  # `update` starts the next one
                    return
                self._is_due = False
            try:
                self._upload(self._directory)
            except (MxtrainError, OSError) as error:  # a failed upload must not end training
                log.warning(
                    "checkpoint.upload: %s The checkpoint is kept in '%s' and is uploaded with the next one.",
                    error,
                    self._directory,
                )

    def _upload(self, directory: Path) -> None:
        """Makes the address hold the checkpoints of a folder.

        Raises:
            StoreError: the store refuses, or does not answer.
            OSError: a checkpoint cannot be read.
        """
        store, address = store_of(self.address.scheme), self.address
        remote = _remote_checkpoints(address)
        if not self._is_owner(remote):
            return
        for entry in reversed(scan(directory)):
            name = entry.path.name
            # A checkpoint that is not kept any more may be removed meanwhile.
            with suppress(FileNotFoundError):
                if name in self._complete or _is_same(address, remote, entry.path):
                    self._complete.add(name)
                    continue
                start_s = time.monotonic()
                files = [path for path in sorted(entry.path.rglob("*")) if path.is_file()]
                if MANIFEST in remote.checkpoints.get(name, {}):  # of the machine that trained before
                    store.remove(address.below(f"{name}/{MANIFEST}"))
                for path in sorted(files, key=lambda path: path.name == MANIFEST):
                    store.write_file(address.below(f"{name}/{path.relative_to(entry.path).as_posix()}"), path)
                self._complete.add(name)
                log.info("checkpoint %s is in %s (%.1fs)", name, address, time.monotonic() - start_s)
        entries = scan(directory)
        kept = {entry.path.name for entry in entries}
        # Later steps are those of another machine: they are kept until this one has reached them.
        obsolete = [name for name in sorted(set(remote.checkpoints) - kept) if _step_of(name) <= entries[-1].step]
        for name in obsolete:
            for file in sorted(remote.checkpoints[name], key=lambda file: file != MANIFEST):
                store.remove(address.below(f"{name}/{file}"))
        self._complete &= kept

    def _is_owner(self, remote: RemoteCheckpoints) -> bool:
        """Takes possession of the address at the first upload; returns False if another machine has done so since."""
        if self._owns and remote.owner is not None:
            owner = _read_owner(self.address, remote)
            if owner and owner["session"] != self._session:
                self._is_superseded = True
                log.warning(
                    "checkpoint.upload: %s has continued this run: %s. Checkpoints of this process are no longer "
                    "uploaded; they are kept in '%s'.",
                    self.address,
                    _by(owner),
                    self._directory,
                )
                return False
        else:
            now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            claim = {"session": self._session, "host": socket.gethostname(), "since": now}
            store_of(self.address.scheme).write(self.address.below(OWNER), encode_json(claim))
            self._owns = True
        return True


def fetch_checkpoints(
    text: str, directory: Path, starts_over: bool, differences: Callable[[Checkpoint], Sequence[str]] = lambda _: ()
) -> None:
    """Downloads checkpoints of another machine before a run looks for the one to continue from.

    Where both hold another checkpoint of the same name, that of the address counts: the other machine has continued.

    Args:
        text: `checkpoint.upload`.
        directory: folder of the run's checkpoints.
        starts_over: True if the run does not continue.
        differences: returns a line for each setting by which the run of a checkpoint computes something else.

    Raises:
        StoreError: the store refuses, or does not answer.
        CheckpointError: the run starts over, and its checkpoints would replace others; or those at the address are of
            another run. Nothing was downloaded.
    """
    address = parse_address(text)
    remote = _remote_checkpoints(address)
    if starts_over and remote.checkpoints:
        raise CheckpointError(
            f"checkpoint.upload={text}: {max(remote.checkpoints)} of an earlier run is there, and a run that starts "
            "over would replace it. Choose another address, or remove it."
        )
    here = {entry.path.name: entry.path for entry in scan(directory)}
    names = [name for name in sorted(remote.checkpoints) if MANIFEST in remote.checkpoints[name]]
    names = [name for name in names if name not in here or _is_other(address, remote, here[name])]
    try:
        # All are downloaded before the first one counts, so that nothing of another run stays.
        downloads = {name: _download(address.below(name), remote.checkpoints[name], directory) for name in names}
        for name, path in downloads.items():
            lines = differences(read_checkpoint(path, verify_arrays=False)) if _is_whole(path) else ()
            if lines:
                raise CheckpointError(
                    f"checkpoint.upload={text}: {name} there is of a run that computes something else:\n"
                    + "\n".join(lines)
                    + "\nChoose another address."
                )
        for name, path in downloads.items():
            if name in here:
                log.warning(
                    "%s: the one at %s replaces another one in '%s', because a machine has continued this run there",
                    name,
                    address,
                    directory,
                )
                discard(here[name])
            os.rename(path, directory / name)
            fsync_directory(directory)
    except OSError as error:
        raise CheckpointError(
            f"Checkpoints of {address} cannot be written to '{directory}': {error.strerror or error}."
        ) from error
    finally:
        for name in names:
            shutil.rmtree(_temporary(directory, name), ignore_errors=True)
        with suppress(OSError):  # it holds something
            directory.rmdir()
    if names:
        owner = _read_owner(address, remote)
        log.info("%s: downloaded from %s%s", ", ".join(names), address, f" ({_by(owner)})" if owner else "")


def _temporary(directory: Path, name: str) -> Path:
    return directory / f"{TEMPORARY}download-{name}-{os.getpid()}"


def _download(address: Address, files: Mapping[str, Tuple[int, str]], directory: Path) -> Path:
    """Downloads a checkpoint into a temporary folder, which it returns.

    Raises:
        StoreError: the store refuses, or does not answer.
        OSError: a file cannot be written.
    """
    temporary = _temporary(directory, address.key.rpartition("/")[2])
    for file, (size, etag) in sorted(files.items()):
        path = temporary / file
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = create_file(path)
        try:
            store_of(address.scheme).copy_to(address.below(file), etag, size, descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return temporary


def _is_whole(path: Path) -> bool:
    """Returns True if the settings of a checkpoint can be read. The search for the newest one reports damage."""
    with suppress(CheckpointError):
        return "run" in read_checkpoint(path, verify_arrays=False).state
    return False


def _is_same(address: Address, remote: RemoteCheckpoints, path: Path) -> bool:
    """Returns True if the address holds a complete checkpoint with the content of the one at `path`.

    Raises:
        StoreError: the store refuses, or does not answer.
        DamagedCheckpoint: the one at `path` has no manifest.
    """
    size, etag = remote.checkpoints.get(path.name, {}).get(MANIFEST, (0, ""))
    manifest = address.below(f"{path.name}/{MANIFEST}")
    return bool(etag) and store_of(address.scheme).content(manifest, etag, size) == read_file(path / MANIFEST)


def _is_other(address: Address, remote: RemoteCheckpoints, path: Path) -> bool:
    """Returns True if the one at the address has other content; False if the one at `path` is damaged, which the search
    for the one to continue from reports."""
    with suppress(DamagedCheckpoint):
        return not _is_same(address, remote, path)
    return False


def _step_of(name: str) -> int:
    """Returns the step of a checkpoint by its name."""
    match = NAME.match(name)
    assert match is not None
    return int(match[1])


def _read_owner(address: Address, remote: RemoteCheckpoints) -> Mapping[str, str]:
    """Returns `OWNER`; empty if there is none, or it is not mxtrain's.

    Raises:
        StoreError: the store refuses, or does not answer.
    """
    if remote.owner is None or remote.owner[0] > _MAX_OWNER_BYTES:
        return {}
    size, etag = remote.owner
    with suppress(JsonTextError):
        owner = parse_json(store_of(address.scheme).content(address.below(OWNER), etag, size))
        if not any(problems_of(owner, {"session": str, "host": str, "since": str})):
            return {name: str(owner[name]) for name in ("session", "host", "since")}
    return {}


def _by(owner: Mapping[str, str]) -> str:
    """Returns a clause about the owner of an address, for messages."""
    return f"{owner['host']!r} trains there since {owner['since']!r}"


def _remote_checkpoints(address: Address) -> RemoteCheckpoints:
    """Returns the checkpoints at an address; other objects are ignored."""
    found: Dict[str, Dict[str, Tuple[int, str]]] = defaultdict(dict)
    owner: Optional[Tuple[int, str]] = None
    for listed in list_objects(address):
        name, _, file = listed.key[len(address.prefix) :].partition("/")
        if file and NAME.match(name):
            require_local_name(address.with_key(listed.key))
            found[name][file] = listed.size, listed.etag
        elif name == OWNER and not file:
            owner = listed.size, listed.etag
    return RemoteCheckpoints(found, owner)
