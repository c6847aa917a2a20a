"""Values for explanations: the scores to explain, and attribution maps of samples.

Legend: B batch; H height, W width of the input of the network; h, w of a map over it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Mapping, Optional, Sequence, Tuple

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    Score = Callable[[Tuple[NDArray, ...]], NDArray]
    """Maps the network's outputs for a batch to one differentiable score per sample, (B,). Called with outputs for
    unchanged and changed samples; the score is always that of the class predicted for the unchanged sample."""


@dataclass(frozen=True)
class Explained:
    """The score to explain for each sample of a batch, with captions.

    Attributes:
        score: score to explain.
        true: true answer of each sample, in words.
        predicted: prediction for each sample, in words.
        probability_B: probability of each prediction.
        is_right_B: True if the prediction is correct.
        region_BHW: region of the prediction; None if it is about the whole sample.
        is_of_one_place: True if the score belongs to one position of a map, as that of a detection does; False if it
            belongs to the whole sample.
        extent_B2: height and width of each sample within the network's input, from its top left corner on; the rest
            is padding. None if nothing is padded.
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
    """Attribution map of one sample: the contribution of its parts to the explained score.

    Attributes:
        index: index of the sample in its split.
        heat_hw: contribution of each position of the network's input, or of a coarser map over it, to the score;
            negative if it lowers the score.
        score: explained score.
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
