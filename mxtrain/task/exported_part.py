"""Graphs of parts of an exported network, in addition to that of the network: the encoder, the step of a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence, Tuple, Union

import numpy as np

if TYPE_CHECKING:
    from mxnet.symbol import Symbol

Dims = Tuple[Union[int, str], ...]
"""Size of each dimension; a name where the size is dynamic."""
PartCase = Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]
"""Inputs by name, and MXNet's outputs by name."""


@dataclass(frozen=True)
class ExportedPart:
    """Graph of a part of a network, exported separately.

    Attributes:
        symbol: graph.
        parameters: values of the symbol's variables that are no inputs; may hold others.
        inputs: dimensions and dtype of each input, by name.
        outputs: name of each output of the symbol, in order.
        cases: inputs and outputs that MXNet computed in `predict`, with which the exported graph is verified.
    """

    symbol: Symbol
    parameters: Mapping[str, np.ndarray]
    inputs: Mapping[str, Tuple[Dims, str]]
    outputs: Sequence[str]
    cases: List[PartCase]
