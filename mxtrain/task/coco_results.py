"""Predictions in COCO's form of results: a list of JSON objects, each of which names its picture."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Dict, Iterable, Iterator, Sequence, Union

from mxtrain.errors import ConfigError
from mxtrain.files.durable import encode_json

if TYPE_CHECKING:
    from mxtrain.annotations import JsonObject


def coco_id(place: str) -> Union[int, str]:
    """The number of a picture in COCO's results: that which its file is called, or its name."""
    name = PurePath(place).stem
    return int(name) if name.isdecimal() else name


def refuse_same_ids(places: Sequence[str]) -> None:
    """Refuses files that would be one picture in COCO's results.

    Raises:
        ConfigError: names the first two.
    """
    files: Dict[Union[int, str], str] = {}
    for place in places:
        other = files.setdefault(coco_id(place), place)
        if other != place:
            raise ConfigError(
                f"predict: format=coco: '{other}' and '{place}' would both have the image_id {coco_id(place)}, "
                "which is the name of a file, or its number. Predict for them one after the other, or rename one."
            )


def as_list(results: Iterable[JsonObject]) -> Iterator[str]:
    """Results as pieces of a JSON list, one a line."""
    separator = "\n"
    yield "["
    for result in results:
        yield separator + encode_json(result).decode()
        separator = ",\n"
    yield "\n]\n"
