"""Predictions in the format of COCO's results: a list of JSON objects, each with the id of its image."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Dict, Iterable, Iterator, Sequence, Union

from mxtrain.errors import ConfigError
from mxtrain.files.durable import encode_json
from mxtrain.vision.images.dataset import Dataset

if TYPE_CHECKING:
    from mxtrain.data.spec import BaseDataset
    from mxtrain.types.annotations import JsonObject


def coco_id(location: str) -> Union[int, str]:
    """Returns an image id for COCO results by the file name without extension: as a number if it is one."""
    name = PurePath(location).stem
    return int(name) if name.isdecimal() else name


def coco_ids(locations: Sequence[str], dataset: BaseDataset) -> Dict[str, Union[int, str]]:
    """Returns file -> image id for COCO results: from the dataset's annotations, otherwise from `coco_id`. Warns if the
    annotations contain only some of the files.

    Raises:
        ConfigError: two files would have the same id; the message names the first two.
        DataError: the dataset's annotations cannot be read.
    """
    known = dataset.sample_ids(locations) if isinstance(dataset, Dataset) else {}
    ids: Dict[str, Union[int, str]] = {
        location: known[location] if location in known else coco_id(location) for location in locations
    }
    files: Dict[Union[int, str], str] = {}
    for location, name in ids.items():
        other = files.setdefault(name, location)
        if other != location:
            raise ConfigError(
                f"predict: format=coco: '{other}' and '{location}' would both have the image_id {name}, which "
                "annotations of dataset.root say, or else the file's name. Predict for them one after the other, or "
                "rename one."
            )
    unknown = [location for location in ids if location not in known]
    if known and unknown:
        print(
            f"image_id: annotations of dataset.root name {len(known):,} of the {len(ids):,} images; of the others "
            f"it is the number that a file is called, or its name, e.g. of {unknown[0]}",
            file=sys.stderr,
        )
    return ids


def as_list(results: Iterable[JsonObject]) -> Iterator[str]:
    """Yields a JSON list in pieces, with one result per line."""
    separator = "\n"
    yield "["
    for result in results:
        yield separator + encode_json(result).decode()
        separator = ",\n"
    yield "\n]\n"
