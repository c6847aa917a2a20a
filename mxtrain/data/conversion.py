"""Protocol of datasets that are written in another format, for `data convert`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, FrozenSet, Mapping, Protocol, Sequence, runtime_checkable

from mxtrain.data.recognition import Setting
from mxtrain.data.spec import BaseDataset
from mxtrain.terminal.progress import WorkProgress


@dataclass(frozen=True)
class ConversionRequest:
    """A conversion.

    Attributes:
        name: option of the dataset, e.g. "dataset=cvat".
        target: folder that is written.
        to: the format.
        links: True if files are linked, not copied.
        drop: kinds of content that may be left out.
        description: what tells conversions into the same folder apart: one that was broken off goes on if it is equal.
    """

    name: str
    target: Path
    to: str
    links: bool
    drop: FrozenSet[str]
    description: Mapping[str, object]


@dataclass(frozen=True)
class ConvertedData:
    """Result of a conversion.

    Attributes:
        num_images: number of images of each split.
        num_objects: number of objects.
        class_names: names of the classes.
        largest_difference: largest difference of a coordinate in pixels from the source.
        dropped: kind of content that was left out -> number.
        notes: remarks.
        task: option of conf/task that the result is for.
        option: option of conf/dataset that reads it.
        settings: settings of this dataset, except the root.
    """

    num_images: Mapping[str, int]
    num_objects: int
    class_names: Sequence[str]
    largest_difference: float
    dropped: Mapping[str, int]
    notes: Sequence[str]
    task: str
    option: str
    settings: Mapping[str, Setting]


@runtime_checkable
class Convertible(Protocol):
    """A dataset that can be written in another format.

    Attributes:
        converter: name of the module with the function `convert`, see `Convert`. It is a name, since the
            module imports the datasets that read its formats.
    """

    converter: ClassVar[str]


class Convert(Protocol):
    """Writes a dataset in another format."""

    def __call__(self, dataset: BaseDataset, request: ConversionRequest, progress: WorkProgress) -> ConvertedData:
        """Writes the dataset, reads what was written, and compares.

        Args:
            dataset: the dataset.
            request: what is written, and where.
            progress: receives the progress.

        Raises:
            ConfigError: a setting is wrong.
            DataError: the dataset cannot be read, the format cannot hold it, or the result differs.
        """


def converter_of(dataset: Convertible) -> Convert:
    """Imports the converter of a dataset."""
    convert: Convert = importlib.import_module(dataset.converter).convert
    return convert
