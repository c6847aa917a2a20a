"""What a dataset recognises in a folder, without asking the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Tuple, Union

from mxtrain.data.recognition import FileTree


def recognised(dataset: Any, path: Union[str, Path], option: str) -> Tuple[str, str]:
    """Returns the form, and the overrides to type."""
    guess = dataset.recognise(FileTree(path))
    return guess.form, " ".join([*guess.overrides(option), *guess.asks])
