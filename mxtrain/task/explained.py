"""Explained score of a prediction, and the parts of the sample that it comes from.

Legend: B batch; H height, W width of what enters the network; h, w of a map over it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Mapping, Optional, Sequence, Tuple

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    Score = Callable[[Tuple[NDArray, ...]], NDArray]
    """Maps the network's outputs, for unchanged or changed samples of a batch, to one differentiable score each, (B,).
    The score stays that of the class predicted for the unchanged samples."""


@dataclass(frozen=True)
class Explained:
    """The number that is explained of each sample of a batch, and what a person is told of it.

    Attributes:
        score: score to explain.
        true: true answer of each sample, in words.
        predicted: what was predicted, in words.
        probability_B: of what was predicted.
        is_right_B: True if the prediction is correct.
        region_BHW: region of the prediction; None if it is about the whole sample.
        is_of_one_place: whether the number is of one place of a map, such as a detection, and not of the whole sample.
        extent_B2: height and width of a sample in what enters the network, from its top left corner on; the rest is
            filling. None if there is none.
    """

    score: Score
    true: Sequence[str]
    predicted: Sequence[str]
    probability_B: np.ndarray
    is_right_B: np.ndarray
    region_BHW: Optional[np.ndarray] = None
    extent_B2: Optional[np.ndarray] = None
    is_of_one_place: bool = False


@dataclass(frozen=True)
class Attribution:
    """The parts of one sample that its explained number came from.

    Attributes:
        index: of the sample in its split.
        heat_hw: how much each place of what enters the network, or each place of a coarser map over it, spoke for
            the prediction; below 0 where it spoke against.
        score: the number that is explained.
        facts: further numbers for the table, by column.
    """

    index: int
    heat_hw: np.ndarray
    score: float
    true: str
    predicted: str
    probability: float
    is_right: bool
    region_HW: Optional[np.ndarray] = None
    extent: Optional[Tuple[int, int]] = None
    facts: Mapping[str, float] = field(default_factory=dict)
