"""Counts the output time steps of a user's network by tracing it, for the lengths of CTC losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Tuple

import numpy as np

from mxtrain.errors import ConfigError
from mxtrain.model.graph.trace import NotTraceable, trace
from mxtrain.types import shapes_of

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature
    from mxtrain.model.spec import Model


class TracedScores:
    """Maps numbers of frames (N,) to numbers of output time steps (N,); each distinct number is traced once.

    Args:
        model: description of the network.
        num_classes: K.
        signature: signature with the width of a frame.
    """

    def __init__(self, model: Model, num_classes: int, signature: Signature) -> None:
        (_, self._width), *_ = shapes_of(signature.shape)
        self._network = model.build(num_classes, shapes_of(signature.shape)[0])
        self._name, self._num_classes = type(self._network).__name__, num_classes
        self._known: Dict[int, int] = {}

    def __call__(self, frame_N: np.ndarray) -> Tuple[np.ndarray]:
        return (np.array([self._count(int(frames)) for frames in frame_N], np.int64),)

    def _count(self, frames: int) -> int:
        """Returns the number of output time steps for a number of frames.

        Raises:
            ConfigError: the network cannot be traced, or its output is not (B, T, K).
        """
        if frames in self._known:
            return self._known[frames]
        try:
            traced = trace(self._network, ((frames, self._width), ()))
        except NotTraceable as error:
            raise ConfigError(
                f"model: how many scores {self._name} gives for a recording is found by tracing it, which it does not "
                "allow. Make it a gluon.HybridBlock."
            ) from error
        shapes = traced.output_shapes
        shape = shapes[0] if len(shapes) == 1 and traced.failure is None else None
        if shape is None or len(shape) != 3 or shape[2] != self._num_classes:
            result = traced.failure.reason if traced.failure is not None else shapes
            raise ConfigError(
                f"model: {self._name} must return scores (B, T, {self._num_classes}) for frames (B, T, {self._width}) "
                f"and their numbers (B,): one for each character and for the blank, which is the last. For one sample "
                f"of {frames} frames it gives {result}."
            )
        return self._known.setdefault(frames, int(shape[1]))
