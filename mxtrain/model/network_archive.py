"""Reads the archive of a network, such as a `model.tar.gz` of SageMaker, in one pass."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Dict, Optional, Tuple, Union

from mxtrain.files.download.archives import members_of
from mxtrain.files.download.transfer import WrongContent
from mxtrain.files.regular_files import MAX_BYTES, MAX_TEXT_BYTES

ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
"""Ends of the names of archives."""
_TEXTS = re.compile(r".*-symbol\.json|hyperparams\.json|model-shapes\.json")
_WEIGHTS = re.compile(r".*?(\d*)\.params")


def is_archive(path: Union[str, Path]) -> bool:
    """Returns True for the name of an archive."""
    return str(path).endswith(ARCHIVES)


@dataclass
class NetworkArchive:
    """The parts of an archive that describe a network.

    Attributes:
        texts: content of graphs and of settings by path in the archive.
        weights: content of the `.params` file of the last epoch; None if there is none, or if it was taken.
    """

    texts: Dict[str, bytes] = field(default_factory=dict)
    weights: Optional[bytes] = None


_Stamp = Tuple[str, int, int, int]
_latest: Dict[_Stamp, NetworkArchive] = {}
"""The archive that was read last, so that graph, settings and weights take one pass."""


def read_archive(path: Union[str, Path]) -> NetworkArchive:
    """Returns the parts of an archive. The archive of the last call is only read again if the file has changed.

    Raises:
        WrongContent: the archive is damaged, or its texts are too large.
        OSError: it cannot be read.
    """
    status = os.stat(path)
    stamp = (os.path.abspath(path), status.st_ino, status.st_size, status.st_mtime_ns)
    if stamp not in _latest:
        _latest.clear()
        _latest[stamp] = _read(Path(path))
    return _latest[stamp]


def take_weights(path: Union[str, Path]) -> bytes:
    """Returns the content of the `.params` file of the last epoch, and forgets it: it may be large.

    Raises:
        WrongContent: the archive is damaged, or has no such file.
        OSError: it cannot be read.
    """
    archive = read_archive(path)
    _latest.clear()
    if archive.weights is None:
        raise WrongContent("is an archive without a .params file")
    return archive.weights


def _read(path: Path) -> NetworkArchive:
    archive = NetworkArchive()
    left, last = MAX_TEXT_BYTES, (-1, "")
    for member, read in members_of(path):
        name = PurePosixPath(member).name
        weights = _WEIGHTS.fullmatch(name)
        if weights is not None:
            epoch = (int(weights[1] or 0), member)
            if epoch > last:
                archive.weights = None  # before the next one is read: epochs are not in memory together
                archive.weights, last = read(MAX_BYTES), epoch
        elif _TEXTS.fullmatch(name):
            archive.texts[member] = read(left)
            left -= len(archive.texts[member])
    return archive
