"""Loaders of images by the names of their settings alone."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.vision.images.loader import ImageSettings, Loader


def image_loader(source: Any, **given: Any) -> Loader:
    """A loader of a source; what is given is fields of `ImageSettings` and `LoaderOptions`."""
    own = {one.name: given.pop(one.name) for one in fields(ImageSettings) if one.name in given}
    return Loader(source, ImageSettings(**own), LoaderOptions(**given))
