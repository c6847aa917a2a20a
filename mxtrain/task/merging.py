"""Predictions that are merged from several passes of the network: over variants of each sample (test-time
augmentation), or over the tiles of large samples.

The field says how samples become variants or tiles (`Signature.variants`, `Signature.tiled`); the task says how its
outputs are merged, by implementing a protocol of this module.

Legend: V variants, B batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Protocol, Sequence, Tuple, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.passes import Tile, Variant
    from mxtrain.data.signature import Signature
    from mxtrain.types import Batch

    Outputs = Tuple[NDArray, ...]
    MergeOutputs = Callable[[Sequence[Outputs]], Outputs]
    """Function (outputs for each variant, the unchanged one first) -> outputs in the place of those of one pass."""


@runtime_checkable
class MergesVariants(Protocol):
    """A task that merges the outputs for several variants of a batch."""

    def merge_variants(self, description: RunParts, signature: Signature, variants: Sequence[Variant]) -> MergeOutputs:
        """Returns the function that merges outputs. Does not import MXNet before it is called.

        Merged outputs replace those of one pass: loss, metrics, reports and predictions are computed from them.

        Args:
            description: description of the run.
            signature: signature of the network.
            variants: the variants, the unchanged one first.

        Raises:
            ConfigError: the task or the network does not allow one of the variants.
        """


@runtime_checkable
class ComputesVariants(Protocol):
    """A task whose network computes and merges variants itself, before its last operators."""

    def with_variants(self, variants: Sequence[Variant]) -> Any:
        """Returns the task whose networks do so; they have the weights of this task's.

        Args:
            variants: the variants, the unchanged one first.

        Raises:
            ConfigError: the network does not allow one of the variants.
        """


class MergeTiles(Protocol):
    """Merges the predictions for the tiles of a sample."""

    def decode(self, outputs: Outputs, batch: Batch) -> Sequence[np.ndarray]:
        """Returns what is kept of each tile of a batch, on the host.

        Args:
            outputs: outputs of the network.
            batch: tiles.
        """

    def merge(self, size: Tuple[int, int], parts: Iterator[Tuple[Tile, np.ndarray]]) -> np.ndarray:
        """Returns the prediction for a sample, as `Task.decode` returns it.

        Args:
            size: (height, width) of the sample.
            parts: its tiles, line by line, with what `decode` returned; read one by one, so that they need not be in
                memory together.
        """


@runtime_checkable
class MergesTiles(Protocol):
    """A task that merges the predictions for the tiles of a sample."""

    def merge_tiles(self, description: RunParts, signature: Signature, blend: Optional[str]) -> MergeTiles:
        """Returns the functions that merge tiles. Does not import MXNet before they are called.

        Args:
            description: description of the run.
            signature: signature of the network.
            blend: weights of overlapping tiles, "gaussian", "constant" or "crop"; None: the usual ones of the task.

        Raises:
            ConfigError: the task has no such weights.
        """


def log_mean_exp(arrays: Sequence[NDArray]) -> NDArray:
    """Returns the logarithm of the mean of the exponentials of arrays of one shape: of log probabilities, the logarithm
    of their mean. Exact for probabilities that are 0 in float32."""
    from mxtrain.engine.backend import nd

    stacked = nd.stack(*arrays)
    largest = stacked.max(axis=0)
    return largest + nd.log(nd.exp(nd.broadcast_sub(stacked, largest.expand_dims(0))).mean(axis=0))


def merge_class_scores(outputs: Sequence[Outputs], axis: int = -1) -> Outputs:
    """Returns the logarithms of the mean class probabilities, whose softmax is that mean; further outputs are those of
    the first pass.

    Args:
        outputs: outputs of each pass, scores before the softmax first.
        axis: axis of the classes.
    """
    from mxtrain.engine.backend import nd

    merged = log_mean_exp([nd.log_softmax(each[0].astype("float32"), axis=axis) for each in outputs])
    return (merged, *outputs[0][1:])


def merge_class_set_scores(outputs: Sequence[Outputs]) -> Outputs:
    """Returns the scores whose sigmoid is the mean of the sigmoids of all passes; further outputs are those of the
    first pass."""
    from mxtrain.engine.backend import nd

    scores = [each[0].astype("float32") for each in outputs]
    # The logarithm of sigmoid(x) is -softplus(-x).
    likely, unlikely = (
        log_mean_exp([-nd.Activation(sign * score, act_type="softrelu") for score in scores]) for sign in (-1, 1)
    )
    return (likely - unlikely, *outputs[0][1:])


def merge_values(outputs: Sequence[Outputs]) -> Outputs:
    """Returns the means of predicted numbers; further outputs are those of the first pass."""
    from mxtrain.engine.backend import nd

    return (nd.stack(*(each[0].astype("float32") for each in outputs)).mean(axis=0), *outputs[0][1:])
