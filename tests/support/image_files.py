from pathlib import Path
from typing import Sequence, Union

from mxtrain.vision.images.decoding import DecodedSource
from mxtrain.vision.images.files import ImageFiles, find_files
from mxtrain.vision.images.settings import Decoding


def open_files(paths: Sequence[Union[str, Path]], decoding: Decoding) -> DecodedSource:
    """Opens image files without labels as `predict` does."""
    return DecodedSource(ImageFiles(find_files(paths)), decoding)
