"""Conversions without composing a configuration, which takes ten times as long as converting a few images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Sequence, Tuple, Union

import yaml

from mxtrain.config.options import own_classes
from mxtrain.workflows.convert_data import ConvertDataSettings, DataConversion, convert_data_of


def open_dataset(words: List[str]) -> Tuple[str, Any]:
    """The name of a dataset, and the dataset, of overrides `dataset=NAME dataset.SETTING=VALUE ...`."""
    pairs = (word.partition("=")[::2] for word in words)
    settings = {key.removeprefix("dataset."): yaml.safe_load(value) for key, value in pairs}
    return words[0], own_classes("dataset")[settings.pop("dataset")](**settings)


def convert(
    source: Path, target: Path, *words: str, to: str, images: Any = "copy", drop: Union[str, Sequence[str]] = ""
) -> DataConversion:
    """Converts as `mxtrain.convert_data`."""
    settings = ConvertDataSettings(to=to, images=images, drop=drop if isinstance(drop, str) else ",".join(drop))
    classes = own_classes("dataset")
    return convert_data_of(str(source), str(target), settings, words, classes, open_dataset)
