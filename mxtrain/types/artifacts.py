"""Figures, tables, texts and sounds: output of a task for loggers, `eval` and `predict`, which know no task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Sequence, Union

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Figure:
    """A figure that a task draws, e.g. of a few samples and their predictions."""

    name: str
    """The name of its file, without an ending, and of its tag in TensorBoard."""
    draw: Callable[[int], Image.Image]
    """Makes the PIL.Image of at most so many samples, where it shows samples."""


@dataclass(frozen=True)
class Table:
    """A table that a task shows or writes."""

    name: str
    """The name of its file, without an ending, and of its tag in TensorBoard."""
    header: Sequence[str]
    rows: Sequence[Sequence[Union[str, int, float]]]
    is_shown: bool = True
    """True if it is printed for a person, or only written."""


@dataclass(frozen=True)
class TextLines:
    """Lines of text that a task shows or writes."""

    name: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Audio:
    """A sound that a task provides for listening."""

    name: str
    """The name of its file, without an ending, and of its tag in TensorBoard."""
    sample_rate: int
    """Samples a second."""
    encode: Callable[[], bytes]
    """Makes the WAV file."""


Artifact = Union[Figure, Table, TextLines, Audio]
"""Output of a task for loggers, `eval` and `predict`, which know no task."""
