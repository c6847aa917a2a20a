"""Writes, reads and verifies the files of one checkpoint directory.

    <stem>.params    arrays by structural name, e.g. model.params, optimizer.params, ema.params (MXNet's own format)
    state.json       counters and everything else that is not an array
    manifest.json    size and SHA-256 of each of the files above

Nothing is unpickled or evaluated, so opening an untrusted checkpoint runs no code.

Reasons: docs/decisions/0002-checkpoint-format.md.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Tuple

from mxtrain.checkpoint.ndarray_file import parse_ndarrays, write_into
from mxtrain.checkpoint.pieces import ArrayInPieces, HostArray
from mxtrain.checkpoint.verified import map_file, of_os_error, read_file, verify_file
from mxtrain.config.moved import with_current_paths
from mxtrain.errors import CheckpointError, DamagedCheckpoint, LaterCheckpoint, UnreadableCheckpoint
from mxtrain.files.durable import Digest, HashedFile, PathLike, fsync_directory
from mxtrain.files.json_text import JsonTextError, parse_json

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Json, JsonObject

FORMAT = "mxtrain-checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
STATE = "state.json"
DIRECTIONS = ("max", "min")

_STEM = re.compile(r"[a-z][a-z0-9_]*\Z")
_FILE = re.compile(r"[a-z][a-z0-9_]*\.(params|json)\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_STATE_KEYS = {"step", "epoch", "metric", "monitor", "direction", "state"}
MAPPED_FROM_BYTES = 1 << 26
"""Size of an array file in bytes from which on it is mapped into memory instead of read."""
_MAX_MANIFEST_BYTES = 1 << 20
_FLOAT_TAG = "__float__"


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint that is to be saved.

    The arrays must not change until they have been read: pass copies, or `ArrayInPieces` of the run's own arrays, for
    which `CheckpointStore.save` waits.
    """

    step: int
    """Finished optimizer steps."""
    epoch: int
    """Finished epochs."""
    arrays: Mapping[str, Mapping[str, HostArray]]
    """File stem ("model", "optimizer", "ema") -> structural name -> host copy, or a source that is read in pieces."""
    state: Mapping[str, Json]
    """JSON values: None, bool, int, float (also inf and nan), str, lists, and dicts with str keys."""
    metric: Optional[float] = None
    """The monitored value at this step, for `best` and `keep_top`; None if it was not measured."""
    direction: str = "max"
    """"max" if a larger value of the metric is better, "min" if a smaller one."""
    monitor: str = ""
    """Name of the metric, e.g. val/accuracy; only checkpoints with the same one are compared."""

    @property
    def is_live(self) -> bool:
        """Returns True if some arrays are the run's own, which must not change before they have been read."""
        return any(isinstance(array, ArrayInPieces) for arrays in self.arrays.values() for array in arrays.values())


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint, on the disk or received from another worker into memory."""

    path: Path
    step: int
    epoch: int
    state: JsonObject
    metric: Optional[float]
    direction: str
    monitor: str
    files: Mapping[str, Digest]
    """The manifest: file name -> size and SHA-256."""
    content: Optional[Mapping[str, memoryview]] = None
    """Content of the array files by name, if another worker sent them; None if they are read from `path`."""

    @property
    def stems(self) -> Tuple[str, ...]:
        """Returns the names of the array files without their extension, e.g. ("model", "optimizer")."""
        return tuple(sorted(name[: -len(".params")] for name in self.files if name.endswith(".params")))

    def arrays(self, stem: str) -> Dict[str, np.ndarray]:
        """Returns the arrays of one file by structural name, read-only, after verifying its hash again.

        Raises:
            CheckpointError: there is no such file, or it was damaged or removed since the checkpoint was opened.
        """
        name = f"{stem}.params"
        if name not in self.files:
            raise CheckpointError(f"The checkpoint {self.path} holds no '{stem}'; it holds {', '.join(self.stems)}.")
        try:
            return parse_ndarrays(self._read(name), source=name)
        except CheckpointError as error:
            raise _unusable(self.path, error) from error

    def _read(self, name: str) -> memoryview:
        if self.content is not None:
            return self.content[name]
        digest = self.files[name]
        # Reading a large file would hold it in memory together with the network's arrays; mapping it does not.
        read = map_file if digest.size >= MAPPED_FROM_BYTES else read_file
        return read(self.path / name, expected=digest)


def write_contents(snapshot: Snapshot, directory: PathLike, when_read: Callable[[], object] = lambda: None) -> int:
    """Writes all files of a checkpoint into a new directory and syncs them to the disk.

    Args:
        snapshot: the content to write.
        directory: the directory to create.
        when_read: called once all arrays have been read, before waiting for the disk.

    Returns:
        Bytes written.

    Raises:
        CheckpointError: the snapshot holds a value or an array that the format cannot store.
        OSError: a file could not be written completely.
    """
    directory = Path(directory)
    # Encoded before the directory exists, so that a value that JSON cannot hold leaves nothing behind.
    header = _header(snapshot)
    os.mkdir(directory)
    files_by_name: Dict[str, HashedFile] = {}
    with ExitStack() as stack:
        for stem in sorted(snapshot.arrays):
            if not _STEM.match(stem):
                raise CheckpointError(f"the file stem {stem!r} is not of the form {_STEM.pattern[:-2]}")
            file = stack.enter_context(HashedFile(directory / f"{stem}.params"))
            write_into(file, snapshot.arrays[stem])
            files_by_name[file.path.name] = file
        # Leaving the ExitStack syncs the files, which training need not wait for.
        when_read()
    files = {name: file.digest for name, file in files_by_name.items() if file.digest is not None}
    # state.json and the manifest come last: an interrupted write has no manifest, and is recognised by that.
    files[STATE] = _write_json(directory / STATE, header)
    entries: Mapping[str, Json] = {
        name: {"size": digest.size, "sha256": digest.sha256} for name, digest in sorted(files.items())
    }
    manifest = _write_json(directory / MANIFEST, {"format": FORMAT, "version": VERSION, "files": entries})
    # The entries of the files have to be on the disk before the rename that gives the checkpoint its name.
    fsync_directory(directory)
    return manifest.size + sum(digest.size for digest in files.values())


def read_checkpoint(path: PathLike, *, verify_arrays: bool = True) -> Checkpoint:
    """Opens a checkpoint directory and verifies it.

    Args:
        path: the directory that holds manifest.json.
        verify_arrays: True to read every array file and compare its SHA-256; False to compare only the sizes.

    Raises:
        DamagedCheckpoint: a file is missing, damaged or not in the manifest.
        UnreadableCheckpoint: a file cannot be read, for example because of its permissions.
        LaterCheckpoint: a later version of mxtrain wrote it.
    """
    path = Path(path)
    try:
        files = _read_manifest(path)
        header = _read_header(path, files[STATE])
        for name, digest in files.items():
            if name != STATE and verify_arrays:
                verify_file(path / name, digest)
    except CheckpointError as error:
        raise _unusable(path, error) from error
    except OSError as error:
        raise _unusable(path, of_os_error(error, f"{error.filename} cannot be read: {error.strerror}")) from error
    except RecursionError as error:
        raise _unusable(path, DamagedCheckpoint(f"{STATE} is nested too deeply")) from error
    return Checkpoint(path=path, files=files, **header)


def encode_json(value: object, where: str = "state") -> Json:
    """Returns a copy that JSON represents exactly: infinities and NaN become objects like {"__float__": "inf"}.

    Raises:
        CheckpointError: a value cannot be represented in JSON; the message gives its path.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _FLOAT_TAG:
                raise CheckpointError(f"{where} has the key {key!r}; keys must be strings other than {_FLOAT_TAG!r}")
        return {key: encode_json(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    # Also NumPy's integers; bool is an Integral too, and was returned above.
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else {_FLOAT_TAG: repr(number)}
    if type(value).__name__ == "bool_":  # numpy's, which is no numbers.Number
        return bool(value)
    raise CheckpointError(f"{where} is a {type(value).__name__}, which JSON does not hold")


def decode_json(value: Json) -> Json:
    """Decodes the result of `encode_json`; tuples become lists."""
    if isinstance(value, list):
        return [decode_json(item) for item in value]
    if isinstance(value, dict):
        if set(value) == {_FLOAT_TAG}:
            if value[_FLOAT_TAG] not in ("inf", "-inf", "nan"):
                raise CheckpointError(f"{STATE} holds an unknown number {value[_FLOAT_TAG]!r}")
            return float(value[_FLOAT_TAG])
        return {key: decode_json(item) for key, item in value.items()}
    return value


def _header(snapshot: Snapshot) -> Mapping[str, Json]:
    """Returns the content of state.json. Called before any file is written, so that invalid values leave no files."""
    if snapshot.direction not in DIRECTIONS:
        raise CheckpointError(f"direction is {snapshot.direction!r}; allowed are max and min")
    metric = None if snapshot.metric is None or not math.isfinite(snapshot.metric) else float(snapshot.metric)
    return {
        "step": int(snapshot.step),
        "epoch": int(snapshot.epoch),
        "metric": metric,
        "monitor": snapshot.monitor,
        "direction": snapshot.direction,
        "state": encode_json(snapshot.state),
    }


def _write_json(path: Path, value: Mapping[str, Json]) -> Digest:
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
    with HashedFile(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    assert file.digest is not None
    return file.digest


def _load_json(data: memoryview, name: str) -> JsonObject:
    try:
        value = parse_json(bytes(data))
    except JsonTextError as error:
        raise CheckpointError(f"{name} {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} is not a JSON object")
    return value


def _read_manifest(path: Path) -> Dict[str, Digest]:
    """Reads the manifest and checks it against the directory: the same file names and sizes, nothing missing or extra.

    Raises:
        CheckpointError: the manifest is invalid or does not match the directory.
        LaterCheckpoint: a later version of mxtrain wrote it.
    """
    present = set(os.listdir(path))
    if MANIFEST not in present:
        raise CheckpointError(f"{MANIFEST} is missing")
    # Checked before it is read: no other file states the size of the manifest.
    if os.stat(path / MANIFEST).st_size > _MAX_MANIFEST_BYTES:
        raise CheckpointError(f"{MANIFEST} is larger than {_MAX_MANIFEST_BYTES} bytes")
    manifest = _load_json(read_file(path / MANIFEST), MANIFEST)
    # `type(...) is int` instead of isinstance: True is an instance of int.
    version = manifest.get("version")
    if manifest.get("format") == FORMAT and type(version) is int and version > VERSION:
        raise LaterCheckpoint(f"it is of format {version}, made by a later mxtrain; this one reads up to {VERSION}")
    if manifest.get("format") != FORMAT or version != VERSION or set(manifest) != {"format", "version", "files"}:
        raise CheckpointError(f"{MANIFEST} is not the manifest of an mxtrain checkpoint")
    entries = manifest["files"]
    if not isinstance(entries, dict):
        raise CheckpointError(f"{MANIFEST} lists no files")
    files = {name: _read_entry(name, entry) for name, entry in entries.items()}
    missing = sorted((set(files) | {STATE}) - present) or sorted({STATE} - set(files))
    if missing:
        raise CheckpointError(f"{', '.join(missing)} is missing")
    # Files that the manifest does not list have no checksum, so they are rejected.
    extra = sorted(present - set(files) - {MANIFEST})
    if extra:
        raise CheckpointError(f"{', '.join(extra)} does not belong to it; remove what was added")
    for name, digest in files.items():
        size = os.stat(path / name).st_size
        if size != digest.size:
            raise CheckpointError(f"{name} has {size} bytes, its manifest says {digest.size}")
    return files


def _read_entry(name: str, entry: object) -> Digest:
    if not _FILE.match(name) or name == MANIFEST:
        raise CheckpointError(f"{MANIFEST} lists a file {name!r}, which no checkpoint has")
    if not isinstance(entry, dict) or set(entry) != {"size", "sha256"}:
        raise CheckpointError(f"{MANIFEST} has an invalid entry for {name}")
    size, sha256 = entry["size"], entry["sha256"]
    if type(size) is not int or size < 0 or not isinstance(sha256, str) or not _SHA256.match(sha256):
        raise CheckpointError(f"{MANIFEST} has an invalid entry for {name}")
    return Digest(size, sha256)


def _read_header(path: Path, digest: Digest) -> Dict[str, Any]:
    header = _load_json(read_file(path / STATE, expected=digest), STATE)
    if set(header) != _STATE_KEYS:
        raise CheckpointError(f"{STATE} holds {', '.join(sorted(header))}; expected {', '.join(sorted(_STATE_KEYS))}")
    counters = [header["step"], header["epoch"]]
    metric, state = header["metric"], header["state"]
    if any(type(count) is not int or count < 0 for count in counters) or not isinstance(state, dict):
        raise CheckpointError(f"{STATE} holds no counters and state")
    if metric is not None and (type(metric) not in (int, float) or not math.isfinite(metric)):
        raise CheckpointError(f"{STATE} holds the metric {metric!r}, which is no number")
    if header["direction"] not in DIRECTIONS or not isinstance(header["monitor"], str):
        raise CheckpointError(f"{STATE} holds no monitor and direction")
    return {**header, "state": with_current_paths(decode_json(state))}


def _unusable(path: Path, reason: CheckpointError) -> CheckpointError:
    """Returns the error with the path of the checkpoint in its message; a plain CheckpointError becomes damage."""
    kind = type(reason) if isinstance(reason, UnreadableCheckpoint) else DamagedCheckpoint
    return kind(f"The checkpoint {path} cannot be used: {reason}.")
