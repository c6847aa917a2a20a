"""A small feature pyramid network for semantic segmentation, and its base class, which networks of other tasks
share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List

import pydantic
from typing_extensions import Annotated

from mxtrain.errors import ConfigError
from mxtrain.model.spec import Init, Model
from mxtrain.types import Positive, Shape
from mxtrain.types.kinds import Images, Takes
from mxtrain.vision.kinds import ClassMap

if TYPE_CHECKING:
    from mxnet import gluon


class PyramidModel(Model):
    """Base class of small feature pyramid networks: stages of 3x3 convolutions, each of which halves height and width,
    and a top-down path that adds them up to one map at a quarter of the image's height and width. Subclasses add the
    heads."""

    option: ClassVar[str] = ""
    """Name of the option in conf/model/."""

    channels: Annotated[List[Positive], pydantic.Field(min_length=2)] = [24, 48, 96, 128]
    """Output channels of each stage; the first has one convolution, each other two."""
    init: Init = "msra"
    """Initializer of weights: xavier, msra, orthogonal, normal or default (Gluon's Uniform(0.07))."""
    width: Positive = 64
    """Channels of the decoder path."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized. It accepts images of any size that all stages can halve.

        Raises:
            ConfigError: the image is too small to be halved by every stage.
        """
        smallest = 2 ** len(self.channels)
        if min(input_shape[1:]) < smallest:
            raise ConfigError(
                f"model={self.option} with {len(self.channels)} stages needs images of at least "
                f"{smallest}x{smallest}, but they are {input_shape[1]}x{input_shape[2]}. Type "
                f"dataset.image_size=[{smallest},{smallest}], or fewer stages, e.g. model.channels=[24,48]."
            )
        return self.build_pyramid(num_classes)

    def build_pyramid(self, num_classes: int) -> gluon.HybridBlock:
        """Returns the network for images that are large enough.

        Args:
            num_classes: number of classes.
        """
        raise NotImplementedError


class FPN(PyramidModel):
    """Stages of 3x3 convolutions, each of which halves height and width, and a top-down path that adds them up.

    The map at a quarter of the image's height and width has the scores of 4 x 4 pixels in each cell.

    Source: after Kirillov et al., "Panoptic Feature Pyramid Networks" (2019), section 3, but much smaller; sub-pixel
    scores as in Shi et al., "Real-Time Single Image and Video Super-Resolution" (2016).
    """

    option: ClassVar[str] = "fpn"
    takes: ClassVar[Takes] = Takes(Images, ClassMap)

    def build_pyramid(self, num_classes: int) -> gluon.HybridBlock:
        """Returns the network for images that are large enough."""
        from mxtrain.vision.detection.networks.fpn import FeaturePyramid

        return FeaturePyramid(num_classes, self.channels, self.width)
