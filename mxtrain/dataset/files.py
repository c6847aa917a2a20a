"""Image files: finding them in folders, and reading them as a source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.dataset.decoding import DecodedSource
from mxtrain.errors import DataError
from mxtrain.types import Shape

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


class ImageFiles:
    """Paths with labels, as `decoding.Encoded`."""

    def __init__(self, paths: Sequence[Union[str, Path]], label_N: Optional[np.ndarray] = None) -> None:
        """Keep paths and labels.

        Args:
            paths: Image files.
            label_N: One class index per path; None = unknown, -1 each.
        """
        self.paths = [str(path) for path in paths]
        self.label_N = np.full(len(self.paths), -1, np.int32) if label_N is None else np.asarray(label_N, np.int32)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        """The path in quotes."""
        return f"'{self.paths[index]}'"

    def read(self, index: int) -> Tuple[str, int]:
        """Path and label."""
        return self.paths[index], int(self.label_N[index])


def list_images(folder: Union[str, Path]) -> List[Path]:
    """Image files in a folder and below, sorted by path; hidden ones are left out.

    Args:
        folder: Where to look; links to folders are followed.

    Returns:
        Their paths.

    Raises:
        DataError: There is no such folder, or no image in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"'{folder}' is not a folder. Give a folder that holds images ({', '.join(EXTENSIONS)}).")
    found = find_images(folder)
    if not found:
        raise DataError(f"'{folder}' holds no images: no file there or below ends in {', '.join(EXTENSIONS)}.")
    return found


def find_images(folder: Path) -> List[Path]:
    """As `list_images`, but an empty list where there are none."""
    found = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                found.append(Path(parent, name))
    return sorted(found)


def open_files(
    paths: Sequence[Union[str, Path]],
    *,
    shape_CHW: Shape,
    central_crop: float = 0.875,
) -> DecodedSource:
    """A source of image files without labels, for predictions; labels are -1.

    Args:
        paths: Image files, and folders that are searched for them.
        shape_CHW: (C, H, W) of the result.
        central_crop: See `DecodedSource`.

    Returns:
        The source; `source.encoded.paths` are the files in order.

    Raises:
        DataError: A path does not exist, or a folder holds no images.
    """
    found: List[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += list_images(path)
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"There is no image file or folder '{path}'.")
    if not found:
        raise DataError("No image file or folder was given.")
    return DecodedSource(ImageFiles(found), shape_CHW, central_crop=central_crop)
