"""Identity of the data of a run. Checkpoints store it to detect if a resumed run would train on other data.

It extends `fingerprint` by the labels: the contents of small files, such as tables, lists and annotations, and all
arrays of numbers in the sources. Times and paths of files do not count, so data may be copied, moved and touched.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Dict, Iterator, List

import numpy as np

from mxtrain.data.fingerprint import fingerprint, walk_files
from mxtrain.data.loading.described_paths import named_paths, with_local_names
from mxtrain.files.regular_files import open_regular

if TYPE_CHECKING:
    from mxtrain.data.spec import BaseDataset, Splits
    from mxtrain.types.annotations import Json, JsonObject

IMAGES_AND_SOUNDS = frozenset(
    (
        ".jpg",
        ".jpeg",
        ".png",
        ".bmp",
        ".gif",
        ".tif",
        ".tiff",
        ".webp",
        ".dcm",
        ".rec",
        ".wav",
        ".flac",
        ".ogg",
        ".mp3",
        ".mp4",
        ".avi",
    )
)
"""Extensions of files whose content `fingerprint` samples; the content of all others is read."""
BUDGET_BYTES = 1 << 28
"""Limit in bytes of the hashed content of files, and of the arrays of each split: 0.2 s with SHA-256 at 1.3 GB/s."""
MAX_DEPTH = 4
"""Depth of sources within sources, e.g. the rows of a split of a table."""


def identify(dataset: BaseDataset, splits: Splits, known: JsonObject) -> Dict[str, Json]:
    """Returns the identity of an opened dataset.

    Args:
        dataset: description of the dataset.
        splits: its splits, newly opened.
        known: `fingerprint` of the dataset; empty to compute it.

    Returns:
        For each setting a hash of its files, and for each split its number of samples and a hash.
    """
    dataset = with_local_names(dataset)
    known = known or fingerprint(dataset, splits)
    sources = {"train": splits.train, "val": splits.val, "test": splits.test}
    files: Dict[str, Json] = {}
    for name, described in known["files"].items():
        digest = hashlib.sha256(str(described["sha256"]).encode())
        hash_files(digest, named_paths(dataset)[name])
        files[name] = digest.hexdigest()
    parts: Dict[str, Json] = {}
    for name, described in known["splits"].items():
        digest = hashlib.sha256(described["sha256"].encode())
        budget = BUDGET_BYTES
        for array in _arrays(sources[name], set()):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            # A larger array still counts by its type and shape.
            if array.nbytes <= budget:
                digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
                budget -= array.nbytes
        parts[name] = {"samples": described["samples"], "sha256": digest.hexdigest()}
    return {"files": files, "splits": parts}


def differences(before: JsonObject, now: JsonObject, files_only: bool = False) -> List[str]:
    """Returns a line for each part of the data that differs.

    Args:
        before, now: identities.
        files_only: True if settings of the dataset have changed, so that its splits may differ.
    """
    lines = [
        f"  data: the files of dataset.{name} have other names or contents"
        for name, content in before["files"].items()
        if now["files"].get(name, content) != content
    ]
    for name in () if files_only else dict.fromkeys([*before["splits"], *now["splits"]]):
        old, new = (side["splits"].get(name, {"samples": 0}) for side in (before, now))
        if old["samples"] != new["samples"]:
            lines.append(f"  data: {name} had {old['samples']:,} samples, now {new['samples']:,}")
        elif old != new:
            lines.append(f"  data: the {old['samples']:,} samples or labels of {name} differ")
    return lines


def hash_files(digest: hashlib._Hash, paths: List[str]) -> None:
    """Adds the contents of small files of texts and numbers, in the order of their names."""
    budget = BUDGET_BYTES
    for file in sorted(walk_files(paths, without=IMAGES_AND_SOUNDS)):
        if file.size > budget:
            continue  # `fingerprint` hashes blocks of this file
        budget -= file.size
        try:
            with open_regular(file.path, at_most=1 << 62) as (stream, _):
                digest.update(hashlib.sha256(stream.read(file.size)).digest())
        except OSError:
            digest.update(b"unreadable")


def _arrays(source: object, seen: set, depth: int = 0) -> Iterator[np.ndarray]:
    """Yields the arrays of numbers that a source holds, also in lists and in the sources that it is made from."""
    if id(source) in seen or depth > MAX_DEPTH:
        return
    seen.add(id(source))
    for _, value in sorted(getattr(source, "__dict__", {}).items()):
        if isinstance(value, dict):
            value = list(value.values())
        for item in value if isinstance(value, (list, tuple)) else [value]:
            for part in item if isinstance(item, (list, tuple)) else [item]:
                if isinstance(part, np.ndarray) and not isinstance(part, np.memmap):
                    if part.dtype.kind in "biuf":
                        yield part
                elif type(part).__module__.startswith("mxtrain."):
                    yield from _arrays(part, seen, depth + 1)
