"""Names of the image files that a conversion writes: those of the source, as far as each is the only one."""

from __future__ import annotations

import os
import re
from typing import Set

from mxtrain.data.loading.dataset_files import normalize_name
from mxtrain.vision.images.dicom import is_dicom
from mxtrain.vision.images.files import EXTENSIONS

_UNSUITABLE = re.compile(r'[\s/\\:*?"<>|\x00-\x1f\x7f\ud800-\udfff]+')
"""Characters that lists with a name on each line, or other file systems, do not allow."""
_MAX_STEM = 150
_SIGNATURES = {
    b"\xff\xd8": ".jpg",
    b"\x89PNG": ".png",
    b"BM": ".bmp",
    b"GIF8": ".gif",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
"""First bytes of a file -> extension."""


def extension_of(content: bytes) -> str:
    """Returns the usual extension of an image by its first bytes; .jpg for unknown formats."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ".webp"
    if is_dicom(content):
        return ".dcm"
    return next((ending for begin, ending in _SIGNATURES.items() if content.startswith(begin)), ".jpg")


class NamePool:
    """Gives each image a name of its own. Names differ before their extension, as label files have the same name, and
    not only in case, which some file systems ignore."""

    def __init__(self) -> None:
        self._used: Set[str] = set()

    def name(self, path: str, ending: str = "") -> str:
        """Returns the name of a new image.

        Args:
            path: path in the source.
            ending: extension; empty: that of the path.
        """
        stem, own_ending = os.path.splitext(path.rpartition("/")[2])
        if not ending and own_ending.lower() in EXTENSIONS:
            ending = own_ending
        else:
            stem, ending = (stem if ending else stem + own_ending), ending or ".dcm"
        stem = _UNSUITABLE.sub("_", normalize_name(stem)).strip("._ ")[:_MAX_STEM] or "image"
        number, chosen = 1, stem
        while chosen.casefold() in self._used:
            number += 1
            chosen = f"{stem}_{number}"
        self._used.add(chosen.casefold())
        return chosen + ending
