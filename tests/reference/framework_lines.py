"""Lines of the comparison of MXNet with PyTorch: their form, their measurement, and the page that they make.

A line computes the same thing three times: with MXNet, with NumPy in float64, which shares no code with either, and
with PyTorch. Where PyTorch differs, it computes a fourth time with what has to be changed for the same numbers.
"""

from __future__ import annotations

import functools
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple, Type

import numpy as np

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "mxnet-and-pytorch.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

LAYERS, ACTIVATIONS, LOSSES = "Layers", "Activations and functions", "Losses"
INITIALISERS, OPTIMIZERS = "Initial weights", "Optimizers and schedules"
GROUPS = (LAYERS, ACTIVATIONS, LOSSES, INITIALISERS, OPTIMIZERS)

ROUNDING = 1e-5
"""Differences below this one are rounding errors of float32."""

NONE = "-"
"""A number that a line does not have."""


class Line:
    """A line of the table.

    Attributes:
        group: table in which it is.
        title: layer or optimizer, and the part of it that is compared.
        in_mxnet, in_pytorch: the behaviour of each.
        mxtrain: behaviour of mxtrain: begins with "same", "converted", "said", "refused" or "corrected".
        raises: name of the exception that PyTorch raises where MXNet computes; empty if it computes.
        rounding: largest difference of values that count as equal.
        relative: True to compare differences with the largest value, for values that are small or large throughout.
        converters: operators that `export` converts.
        refused: operators that `export` refuses.
    """

    group: ClassVar[str] = ""
    title: ClassVar[str] = ""
    in_mxnet: ClassVar[str] = ""
    in_pytorch: ClassVar[str] = ""
    mxtrain: ClassVar[str] = ""
    raises: ClassVar[str] = ""
    rounding: ClassVar[float] = ROUNDING
    relative: ClassVar[bool] = False
    converters: ClassVar[Tuple[str, ...]] = ()
    refused: ClassVar[Tuple[str, ...]] = ()

    def mxnet(self) -> Any:
        """Computes with MXNet. Returns an array or a list of arrays, as the other methods do."""
        raise NotImplementedError

    def numpy(self) -> Any:
        """Computes MXNet's result in float64."""
        raise NotImplementedError

    def pytorch(self, torch: Any) -> Any:
        """Computes with PyTorch, with the same values and PyTorch's defaults."""
        raise NotImplementedError

    def converted(self, torch: Any) -> Any:
        """Computes MXNet's result with PyTorch. None if `pytorch` is it already, or nothing can give it."""
        return None


def all_lines() -> List[Type[Line]]:
    """Returns the lines in the order in which they are written."""
    import framework_activations  # noqa: F401
    import framework_layers  # noqa: F401
    import framework_losses  # noqa: F401
    import framework_optimizers  # noqa: F401

    return sorted(Line.__subclasses__(), key=lambda line: GROUPS.index(line.group))


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns normally distributed numbers in float32."""
    return np.random.RandomState(seed).normal(size=shape).astype(np.float32)


def difference(line: Line, one: Any, other: Any) -> float:
    """Returns the largest difference of two results; infinite if their shapes differ. NaN equals NaN."""
    ones, others = _arrays(one), _arrays(other)
    if [array.shape for array in ones] != [array.shape for array in others]:
        return np.inf
    largest = 0.0
    for a, b in zip(ones, others):
        with np.errstate(invalid="ignore"):
            away = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        away = np.where(np.isnan(away), np.inf, away)
        scale = float(np.abs(a).max()) if line.relative else 1.0
        largest = max(largest, float(away.max()) / (scale or 1.0))
    return largest


def _arrays(result: Any) -> List[np.ndarray]:
    parts: Sequence[Any] = result if isinstance(result, (list, tuple)) else [result]
    found = []
    for part in parts:
        if hasattr(part, "asnumpy"):
            part = part.asnumpy()
        elif hasattr(part, "detach"):
            part = part.detach().numpy()
        found.append(np.atleast_1d(np.asarray(part, np.float64)))
    return found


def figure(number: Optional[float]) -> str:
    """Returns a difference with two digits, as the page shows it."""
    if number is None:
        return NONE
    if number == 0:
        return "0"
    if np.isinf(number):
        return "other shape or NaN"
    return f"{number:.2g}" if number >= 1e-3 else f"{number:.1e}".replace("e-0", "e-")


@functools.cache
def measured(line: Type[Line]) -> Tuple[str, Optional[float], Optional[float]]:
    """Returns the exception of PyTorch, its difference from MXNet, and the difference after the conversion."""
    import torch

    one = line()
    expected = one.mxnet()
    copied: Optional[float] = None
    raised = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of some of the defaults that a line is about
        try:
            copied = difference(one, expected, one.pytorch(torch))
        except NotImplementedError:
            pass
        except Exception as error:  # which one is what the line says
            raised = type(error).__name__
        result = one.converted(torch)
    return raised, copied, None if result is None else difference(one, expected, result)


def row(line: Type[Line], copied: str, converted: str) -> str:
    """Returns a line of the page."""
    in_pytorch = "the same" if line.in_pytorch == line.in_mxnet else line.in_pytorch
    cells = (line.title, line.in_mxnet, in_pytorch, copied, converted, line.mxtrain)
    return "| " + " | ".join(cells) + " |"


def figures_of(line: Type[Line]) -> Tuple[str, str]:
    """Measures; returns the two figures of a line."""
    raised, copied, converted = measured(line)
    return (f"`{raised}`" if raised else figure(copied)), figure(converted)


PACKAGES = ("mxnet", "torch", "torchvision", "timm", "numpy")


def installed() -> str:
    """Returns the versions with which a page is measured."""
    return f"Measured with {', '.join(f'{name} {metadata.version(name)}' for name in PACKAGES)}, on a CPU."


def page_versions() -> str:
    """Returns the versions with which the page was measured; empty if it was not yet."""
    return next((text for text in PAGE.read_text(encoding="utf-8").splitlines() if text.startswith("Measured")), "")


def tables(figures: Dict[Type[Line], Tuple[str, str]], versions: str) -> str:
    """Returns the versions and the tables of the page."""
    parts = [versions]
    for group in GROUPS:
        lines = [line for line in all_lines() if line.group == group]
        head = (
            f"## {group}\n\n| | MXNet | PyTorch | copied | converted | mxtrain |\n"
            "| --- | --- | --- | ---: | ---: | --- |"
        )
        parts.append("\n".join([head, *(row(line, *figures[line]) for line in lines)]))
    return "\n\n".join(parts)


def page_figures() -> Dict[Type[Line], Tuple[str, str]]:
    """Returns the figures that the page shows; ("", "") for a line that it does not have."""
    shown = {}
    for text in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in text.strip("|").split(" | ")]
        if text.startswith("| ") and len(cells) == 6:
            shown[cells[0]] = cells[3], cells[4]
    return {line: shown.get(line.title, ("", "")) for line in all_lines()}


def with_tables(page: str, written: str) -> str:
    """Returns a page with other tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{written}\n\n{END}{after}"
