"""insightface's networks for face recognition."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Literal, Optional

import pydantic
from typing_extensions import Annotated

from mxtrain.errors import ConfigError
from mxtrain.model.spec import Model
from mxtrain.types import OpenFraction, Positive, Shape
from mxtrain.types.kinds import ClassIndex, Images, Takes
from mxtrain.vision.kinds import Identity

if TYPE_CHECKING:
    from mxnet import gluon

UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}
"""Layers of an iresnet -> residual units of each stage."""
SIDE = 112
"""Side in pixels of the aligned faces for which the networks are published."""
NUM_HALVINGS, LEAST_GDC_MAP = 4, 7
"""Halvings of the image; side of the smallest last map that `GDC` takes."""
Output = Literal["E", "FC", "GAP", "GDC", "J", "F", "G", "H"]


class FaceNetworkModel(Model):
    """Base class of insightface's networks: colour images of pixels to embeddings.

    A `.params` file of insightface's MXNet code loads by name; the class centres of its layer `fc7` are no part of this
    network, but of the one of the task.
    """

    takes: ClassVar[Takes] = Takes(Images, Identity, ClassIndex)

    output: Output = "E"
    """Layers behind the last map, by insightface's name: E = norm, dropout, dense, norm; FC = E without dropout; GDC =
    7x7 depthwise convolution, dense, norm; GAP = norm, activation, mean, dense, norm; J = dense, norm; F, G = E, FC
    without the last norm; H = dense."""
    activation: Literal["prelu", "relu"] = "prelu"
    """Activation; prelu has a slope for each channel."""
    dropout: OpenFraction = 0.4
    """Dropout probability before the embedding, with output E or F."""

    @property
    def takes_pixels(self) -> bool:
        return True

    @property
    def usual_side(self) -> Optional[int]:
        return SIDE

    def input_shape(self, native: Shape) -> Shape:
        """Returns three channels and the dataset's size."""
        return (3, *native[-2:])

    def _require_size(self, input_shape: Shape) -> None:
        """Raises: ConfigError: the last map is smaller than the kernel of the output."""
        height, width = input_shape[1:]
        side = -(-min(height, width) // 2**NUM_HALVINGS)
        if self.output == "GDC" and side < LEAST_GDC_MAP:
            raise ConfigError(
                f"model.output=GDC needs images of at least {(LEAST_GDC_MAP - 1) * 2**NUM_HALVINGS + 1} px, but "
                f"samples are {height}x{width}. Type model.output=E, or dataset.image_size=[{SIDE},{SIDE}]."
            )


class IResNet(FaceNetworkModel):
    """An improved residual network, insightface's `fresnet` with units of version 3.

    Source: Deng et al., "ArcFace" (2019), arXiv 1801.07698, section 3.1; layers as in insightface's fresnet.py.
    """

    depth: Literal[18, 34, 50, 100] = 50
    """Layers: 18, 34, 50 or 100."""
    se: bool = False
    """Add squeeze and excitation to each unit."""
    layout: Literal["mxnet", "pytorch"] = "mxnet"
    """Numbers that differ between insightface's MXNet and PyTorch code: divisor of pixels 128 or 127.5, epsilon of
    batch norms 2e-5 or 1e-5."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized; its output has `num_classes` numbers.

        Raises:
            ConfigError: images are too small for `output`.
        """
        from mxtrain.vision.networks import insightface

        self._require_size(input_shape)
        return insightface.build_iresnet(
            num_classes,
            UNITS[self.depth],
            self.output,
            self.se,
            self.activation,
            self.dropout,
            pytorch=self.layout == "pytorch",
        )


class MobileFaceNet(FaceNetworkModel):
    """MobileFaceNet, insightface's `fmobilefacenet`.

    Source: Chen et al., "MobileFaceNets" (2018), arXiv 1804.07573; layers as in insightface's fmobilefacenet.py.
    """

    output: Output = "GDC"
    """Layers behind the last map, by insightface's name: GDC = 7x7 depthwise convolution, dense, norm; E = norm,
    dropout, dense, norm; FC = E without dropout; GAP = norm, activation, mean, dense, norm; J = dense, norm; F, G = E,
    FC without the last norm; H = dense."""
    blocks: Annotated[List[Positive], pydantic.Field(min_length=4, max_length=4)] = [1, 4, 6, 2]
    """Residual bottlenecks of the four stages: [1,4,6,2] is insightface's y1, [2,8,16,4] its y2."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized; its output has `num_classes` numbers.

        Raises:
            ConfigError: images are too small for `output`.
        """
        from mxtrain.vision.networks import insightface

        self._require_size(input_shape)
        return insightface.build_mobilefacenet(num_classes, self.blocks, self.output, self.activation, self.dropout)
