"""Interface of an exported folder for the modules that read samples for it, and what several of these share. Exported
folders have a copy of this module."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Protocol, Tuple

import numpy as np

from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.files.text_lines import split_lines

MAX_CHARACTERS = 1_000_000
"""Maximum length of a text, for exported folders and the server: the time of a network grows with the length."""


TARGETS_OF_TASKS = {
    "classification": "ClassIndex",
    "regression": "Number",
    "tabular": "RowClass",
    "segmentation": "ClassMap",
    "pose_estimation": "KeyPoints",
    "token_classification": "TokenTags",
    "language_modeling": "NextTokens",
    "translation": "Translations",
    "speech_recognition": "Transcripts",
    "recommendation": "Preference",
}
"""Task -> kind of its targets, for folders that were exported when `signature.json` had no `targets`."""


class UnseenWarning(UserWarning):
    """Values of a file were not seen in training."""


class ExportedFolder(Protocol):
    """An opened exported folder, see `mxtrain.exporting.standalone.OpenedExport`.

    Attributes:
        signature: content of signature.json.
    """

    signature: Dict[str, Any]

    def run(self, inputs: Dict[str, np.ndarray], part: str = "") -> Dict[str, np.ndarray]:
        """Runs the network, or one of its parts; returns the outputs by name."""

    def read(self, name: str) -> bytes:
        """Returns the content of a file of the folder."""

    def read_arrays(self, name: str) -> Dict[str, np.ndarray]:
        """Returns the arrays of a .npz file of the folder; none if there is no such file."""


def targets_in(signature: Dict[str, Any]) -> List[str]:
    """Returns the names of the kind of target that an exported network predicts and of its base classes, see
    `mxtrain.types.kinds`; the most special one first.

    Args:
        signature: content of signature.json.
    """
    targets = signature.get("targets")
    if targets is None:
        return [TARGETS_OF_TASKS.get(str(signature.get("task")), "")]
    return [str(name) for name in targets]


def require_length(text: str, location: str, what: str = "the text") -> None:
    """Rejects texts of more than `MAX_CHARACTERS`.

    Args:
        text: the text.
        location: source location, for the message.
        what: name of the text, for the message.

    Raises:
        ValueError: the text is too long.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"{location}: {what} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read. Split it into parts"
        )


def decoded_text(content: bytes, name: str) -> str:
    """Decodes a text file in UTF-8. A byte order mark is ignored.

    Args:
        content: content of the file.
        name: name of the file, for messages.

    Raises:
        ValueError: the file is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is no UTF-8: {error}") from error


def lines_of(content: bytes, name: str) -> Iterator[Tuple[int, str]]:
    """Yields number and text of each line that is not empty.

    Raises:
        ValueError: the file is not UTF-8.
    """
    for number, line in enumerate(split_lines(decoded_text(content, name)), start=1):
        if line.strip():
            yield number, line


def json_lines_of(content: bytes, name: str) -> Iterator[Tuple[int, Any]]:
    """Yields number and JSON value of each line that is not empty.

    Raises:
        ValueError: the file is not UTF-8, or a line is not JSON.
    """
    for number, line in lines_of(content, name):
        try:
            yield number, parse_json(line, allow_nan=True)
        except JsonTextError as error:
            raise ValueError(f"{name}:{number} {error}") from error
