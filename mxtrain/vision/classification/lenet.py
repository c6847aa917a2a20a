"""A small convolutional network after LeNet-5, with modern layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List

import pydantic
from typing_extensions import Annotated

from mxtrain.errors import ConfigError
from mxtrain.model.networks.layers import Activation
from mxtrain.model.spec import Model
from mxtrain.types import OpenFraction, Positive, Shape
from mxtrain.types.kinds import ClassIndex, ClassSet, Images, Number, Takes
from mxtrain.vision.kinds import Identity

if TYPE_CHECKING:
    from mxnet import gluon


MAX_SIDE = 64
"""Largest side of the network's input in pixels, unless `dataset.image_size` is set."""


class LeNet(Model):
    """Stages of two 3x3 convolutions and 2x2 max pooling, then one hidden dense layer and the output layer.

    Source: after LeCun et al., "Gradient-based learning applied to document recognition" (1998), with ReLU, batch
    normalisation and padding instead of tanh and 5x5 kernels.
    """

    takes: ClassVar[Takes] = Takes(Images, ClassIndex, ClassSet, Number, Identity)

    channels: Annotated[List[Positive], pydantic.Field(min_length=1)] = [32, 64]
    """Output channels of each stage: two 3x3 convolutions, then 2x2 max pooling."""
    hidden: Positive = 128
    """Units of the hidden dense layer."""
    activation: Activation = "relu"
    """Activation after each convolution and the hidden layer."""
    batch_norm: bool = True
    """Normalise after each convolution."""
    dropout: OpenFraction = 0.3
    """Dropout probability of hidden units."""

    def input_shape(self, native: Shape) -> Shape:
        """Returns the size of the dataset, scaled down to `MAX_SIDE`: the hidden layer has weights for each pixel."""
        *channels, height, width = native
        scale = min(1.0, MAX_SIDE / max(height, width))
        return (*channels, max(1, round(height * scale)), max(1, round(width * scale)))

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: the sample is too small to be halved by every stage.
        """
        from mxtrain.model.networks import classifier

        _, height, width = input_shape
        smallest = 2 ** len(self.channels)
        if min(height, width) < smallest:
            raise ConfigError(
                f"model=lenet with {len(self.channels)} stages halves its input {len(self.channels)} times and needs "
                f"at least {smallest}x{smallest}, but samples are {height}x{width}. Use fewer stages, e.g. "
                f"model.channels=[32], or larger samples, e.g. dataset.image_size=[{smallest},{smallest}]."
            )
        return classifier.build_lenet(
            num_classes, self.channels, self.hidden, self.activation, self.batch_norm, self.dropout
        )
