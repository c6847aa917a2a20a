"""Figures, tables, texts and sounds: output of a task that loggers, `eval` and `predict` handle without knowing the
task."""

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
    """Function that draws the PIL.Image; its argument is the maximum number of samples, if the figure shows samples."""


@dataclass(frozen=True)
class Table:
    """A table that a task shows or writes."""

    name: str
    """The name of its file, without an ending, and of its tag in TensorBoard."""
    header: Sequence[str]
    rows: Sequence[Sequence[Union[str, int, float]]]
    is_shown: bool = True
    """True if the table is printed; False if it is only written to a file."""


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
"""Output of a task that loggers, `eval` and `predict` handle without knowing the task."""
