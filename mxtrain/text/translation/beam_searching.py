"""Shared parts of tasks that generate text by beam search: settings, limits, and predictions as numbers.

Legend: B batch, N best sequences of a sample, T tokens of a sequence, W numbers of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np
import pydantic

from mxtrain.task.spec import Task
from mxtrain.text.translation.networks.decoding import LengthLimits
from mxtrain.types import NonNegative, NonNegativeFloat, Positive

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.task.decoding_network import DecodingNetwork
    from mxtrain.text.translation.networks.decoding import Beam
    from mxtrain.types import Batch

    ReadSource = Callable[[Batch], Tuple[Sequence[NDArray], np.ndarray]]
    """Inputs of `StepDecoder.begin` for a batch, and the length (B,) of each source, on the host."""

NO_TOKEN = -1
"""Padding of predictions."""


class BeamSearchTask(Task):
    """Base of tasks whose predictions are sequences of tokens that a beam search finds."""

    beam_size: Positive = 4
    """Beam width per sample; 1 = always the most probable token (greedy)."""
    length_penalty: NonNegativeFloat = 0.6
    """Sequences are compared by log p / ((5 + tokens) / 6) ^ length_penalty; 0 = by log p, which prefers short ones."""
    max_length_ratio: NonNegativeFloat = 1.0
    """A sequence has at most max_length_ratio * length of the source + max_length_offset tokens."""
    max_length_offset: NonNegative = 50
    """See max_length_ratio."""
    max_tokens: Positive = 256
    """Maximum number of tokens of a sequence, for sources of any length."""
    num_best: Positive = 1
    """Sequences that `predict` writes of each sample, best first; at most beam_size."""
    validation_beam_size: Positive = 1
    """beam_size of validations, and of the test at the end of training; `eval` takes beam_size."""

    @pydantic.model_validator(mode="after")
    def _check_num_best(self) -> BeamSearchTask:
        if self.num_best > self.beam_size:
            raise ValueError(f"num_best={self.num_best} must be at most beam_size={self.beam_size}")
        return self

    def in_training(self) -> BeamSearchTask:
        # Greedy validations are cheap. Beam search over a part of the split would give the BLEU of another corpus.
        return self.model_copy(update={"beam_size": self.validation_beam_size, "num_best": 1})

    @property
    def search_signature(self) -> str:
        """Returns the search settings, for the signatures of metrics of generated sequences."""
        if self.beam_size == 1:
            return "decoding:greedy"
        return f"decoding:beam{self.beam_size}|length_penalty:{self.length_penalty:g}"

    def build_beam(self, bos: int, eos: int, never: Sequence[int] = ()) -> Beam:
        """Builds the beam search; arguments as in `Beam`."""
        from mxtrain.text.translation.networks.decoding import Beam

        return Beam(bos, eos, self.beam_size, self.length_penalty, never)

    def build_searching(self, network: DecodingNetwork, beam: Beam, read: ReadSource) -> BeamSearching:
        """Builds the result of `build_decode`.

        Args:
            network: a `StepDecoder`.
            beam: settings of the search.
            read: function that returns the network inputs and source lengths of a batch.
        """
        limits = LengthLimits(self.max_length_ratio, self.max_length_offset, self.max_tokens, network.max_positions)
        return BeamSearching(network, beam, limits, read, self.num_best)


@dataclass(frozen=True)
class BeamSearching:
    """Searches the most probable sequences of a batch, with a separate network that reads the current weights.

    Predictions are an array (B, N, 1 + T) of float64, in which both scores and tokens are exact: for each sequence its
    score and its tokens without <eos>, padded with -1. `hypotheses_of` decodes a sample.

    Attributes:
        network: a `StepDecoder`.
        beam: settings of the search.
        limits: length limits.
        read: function that returns the network inputs and source lengths of a batch.
        num_best: N.
    """

    network: DecodingNetwork
    beam: Beam
    limits: LengthLimits
    read: ReadSource
    num_best: int = 1

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the predictions for a batch."""
        from mxtrain.engine.backend import nd
        from mxtrain.text.translation.networks.decoding import beam_search

        inputs, length_B = self.read(batch)
        inputs = [array.as_in_context(self.network.device) for array in inputs]
        limit_B = self.limits.max_lengths(length_B)
        hypotheses = beam_search(self.network.current(), inputs, limit_B, self.beam, self.num_best)
        is_token = np.arange(hypotheses.token_SNT.shape[2]) < hypotheses.length_SN[:, :, None]
        tokens = np.where(is_token, hypotheses.token_SNT, NO_TOKEN)
        rows = np.concatenate([hypotheses.score_SN[:, :, None], tokens], axis=2)
        # One array for each sample: float64 holds scores and tokens exactly.
        return nd.array(rows, dtype="float64")


class Hypothesis(NamedTuple):
    """A generated sequence.

    Attributes:
        tokens: without <eos>, int32.
        score: log p over the length penalty.
    """

    tokens: np.ndarray
    score: float


def hypotheses_of(prediction_NW: np.ndarray) -> List[Hypothesis]:
    """Returns the sequences in a prediction of `BeamSearching`, best first; at least one."""
    first, *others = (Hypothesis(row[1:][row[1:] != NO_TOKEN].astype(np.int32), float(row[0])) for row in prediction_NW)
    return [first, *(other for other in others if other.score > -np.inf)]
