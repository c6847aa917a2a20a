"""Further graphs of an exported network, beside that of the whole: the encoder, the step of a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence, Tuple, Union

import numpy as np

if TYPE_CHECKING:
    from mxnet.symbol import Symbol

Dims = Tuple[Union[int, str], ...]
"""Sizes; the names of those that are open."""
PartCase = Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]
"""Inputs, and MXNet's outputs."""


@dataclass(frozen=True)
class ExportedPart:
    """A graph of its own.

    Attributes:
        symbol: what it computes.
        parameters: values of its variables that are no inputs; may hold others.
        inputs: dimensions and type of each input.
        outputs: names, in the order of the symbol's.
        cases: what MXNet computed on the way that `predict` takes, for the proof.
    """

    symbol: Symbol
    parameters: Mapping[str, np.ndarray]
    inputs: Mapping[str, Tuple[Dims, str]]
    outputs: Sequence[str]
    cases: List[PartCase]
