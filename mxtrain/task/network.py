"""Builds the network for what a dataset's samples are, which is the same for most tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from mxtrain.types import Shape, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.dataset.signature import Signature
    from mxtrain.model.base import Model


def network_for_samples(
    model: Model, signature: Signature, num_classes: int, output_shapes: Sequence[Shape]
) -> gluon.Block:  # fmt: skip
    """The network of a description, uninitialised: for features of a table, for text, or for one array.

    Args:
        model: the description.
        signature: says what the samples are.
        num_classes: the width of its first output.
        output_shapes: of each output for one sample; empty where only the network knows.
    """
    if signature.num_indices is not None:
        return model.build_indexed(num_classes, signature.num_indices)
    if signature.field_sizes is not None:
        return model.build_features(num_classes, signature.field_sizes, signature.num_numbers)
    if signature.vocab_size is None:
        return model.build(num_classes, shapes_of(signature.shape)[0])
    # Each token is scored: not the text, and no positions that enter the network with it.
    if len(shapes_of(signature.shape)) == 3 and output_shapes and len(output_shapes[0]) == 2:
        return model.build_tagger(num_classes, signature.shape, signature.vocab_size)
    return model.build_text(num_classes, signature.shape, signature.vocab_size)
