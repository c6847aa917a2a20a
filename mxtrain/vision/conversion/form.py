"""Base class of the formats that a conversion writes."""

from __future__ import annotations

import os
import shutil
import unicodedata
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Dict, List, Optional, Type

from mxtrain.data.loading.dataset_files import open_regular
from mxtrain.data.recognition import Setting
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import ConfigError, DataError
from mxtrain.files.durable import create_file
from mxtrain.terminal.progress import WorkProgress
from mxtrain.vision.conversion.content import Content
from mxtrain.vision.conversion.job import ConversionJob, Holds
from mxtrain.vision.images.files import read_content

_TEMPORARY = ".tmp-"
_UNLISTED = ("Cc", "Zl", "Zp", "Cs")
"""Kinds of characters in Unicode that end a line, or that text files do not hold."""


class Form:
    """A format that is written. Subclasses define the class attributes and the methods that raise here."""

    name: ClassVar[str]
    """Value of the setting `to`."""
    words: ClassVar[str]
    """The format in words."""
    holds: ClassVar[Holds]
    exact: ClassVar[str] = ""
    """Precision of coordinates in words."""

    def __init__(self, job: ConversionJob, links: bool) -> None:
        """Stores the conversion.

        Args:
            job: what is converted.
            links: True if image files are linked, not copied.
        """
        self.job, self._links = job, links

    def check(self) -> None:
        """Checks that names and settings can be written.

        Raises:
            DataError, ConfigError: they cannot.
        """

    def image(self, split: str, index: int) -> str:
        """Returns the path of an image in the folder that is written."""
        raise NotImplementedError

    def write(self, folder: Path, progress: WorkProgress) -> None:
        """Writes everything, or what is missing.

        Raises:
            OSError: a file cannot be written.
            DataError: a file of the source cannot be read.
        """
        self.write_images(folder, progress)
        self.write_annotations(folder, progress)

    def write_annotations(self, folder: Path, progress: WorkProgress) -> None:
        """Writes the annotations; the images are there."""

    def option(self) -> str:
        """Returns the option of conf/dataset that reads the result, e.g. "coco"."""
        raise NotImplementedError

    def settings(self) -> Dict[str, Setting]:
        """Returns the settings with which the result is read, except its root."""
        return {}

    def dataset(self, folder: Path) -> BaseDataset:
        """Returns the dataset that reads the result."""
        raise NotImplementedError

    def task(self) -> str:
        """Returns the option of conf/task that the result is for."""
        if not self.holds.objects:
            return "classification"
        if self.job.writes_points:
            return "pose_estimation"
        return "instance_segmentation" if self.job.writes_outlines else "detection"

    def expected_names(self) -> List[str]:
        """Returns the names of the classes in the order in which the result has them."""
        return list(self.content.class_names)

    def expected_label(self, split: str, index: int) -> int:
        """Returns the class of an image in the result."""
        return self.job.label(split, index)

    @property
    def content(self) -> Content:
        """Returns the source."""
        return self.job.content

    def write_images(self, folder: Path, progress: WorkProgress) -> None:
        """Copies or links the images that are not there yet."""
        progress.begin("linking images" if self._links else "copying images", self.content.num_images)
        for split, images in self.content.splits.items():
            for index in range(len(images.encoded)):
                path = folder / self.image(split, index)
                source = self.job.path(split, index)
                if source is None:
                    self._write_record(split, index, path)
                elif self._links:
                    self._link(os.path.abspath(source), path)
                else:
                    _copy(source, path)
                progress.advance(1)

    def _write_record(self, split: str, index: int, path: Path) -> None:
        if self._links:
            raise ConfigError("images=link: the images are in records, which cannot be linked. Type images=copy.")
        content = read_content(self.content.splits[split].encoded, index)
        if not path.exists() or path.stat().st_size != len(content):
            with _NewFile(path) as stream:
                stream.write(content)

    @staticmethod
    def _link(source: str, path: Path) -> None:
        if os.path.islink(path) and os.readlink(path) == source:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.symlink(source, path)


def _copy(source: str, path: Path) -> None:
    """Copies a file unless it was copied before."""
    with open_regular(source) as (stream, size):
        if path.exists() and path.stat().st_size == size:
            return
        with _NewFile(path) as target:
            shutil.copyfileobj(stream, target, 1 << 20)


class _NewFile:
    """A file that has its name only when it is complete."""

    def __init__(self, path: Path, mode: str = "wb", **options: str) -> None:
        self._path, self._temporary = path, path.with_name(f"{_TEMPORARY}{path.name}")
        self._mode, self._options = mode, options

    def __enter__(self) -> IO[Any]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._stream: IO[Any] = os.fdopen(create_file(self._temporary), self._mode, **self._options)  # type: ignore[call-overload]
        return self._stream

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self._stream.close()  # writes what is left, so that it may fail, too
        except OSError:
            self._temporary.unlink(missing_ok=True)
            raise
        if error is None:
            os.replace(self._temporary, self._path)
        else:
            self._temporary.unlink(missing_ok=True)


def text_file(path: Path) -> _NewFile:
    """Returns a text file in UTF-8 that has its name only when it is complete."""
    return _NewFile(path, "w", encoding="utf-8", newline="\n")


def plain_number(value: float) -> Any:
    """Returns an integer for a whole number, which most readers expect; else the number itself."""
    number = float(value)
    return int(number) if number.is_integer() else number


def refuse_unlisted_names(names: List[str], file: str) -> None:
    """Checks that class names can be lines of a file.

    Raises:
        DataError: one cannot.
    """
    for name in names:
        if name != name.strip() or not name or any(unicodedata.category(letter) in _UNLISTED for letter in name):
            raise DataError(f"the class {name!r:.60} cannot be a line of {file}. Give it another name.")
