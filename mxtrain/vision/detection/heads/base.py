"""Protocols of object detectors. Does not import MXNet.

Legend: B batch, M boxes of an image, N detections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Optional, Protocol, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.model.spec import Model
from mxtrain.types import Shape
from mxtrain.types.kinds import Images, Takes
from mxtrain.vision.kinds import Boxes, Masks

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule


class BoxCoding(Protocol):
    """Translates between boxes and the outputs of a family of networks. Boxes are in pixels of the network's input."""

    @property
    def output_shapes(self) -> Sequence[Shape]:
        """Returns the shapes of the network's outputs for one sample; empty if they are only known from the network."""

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Returns the targets that the network's outputs are compared with, each (B, ...) float32.

        Args:
            box_BMD: true boxes, with the columns of `boxes.Column`.
        """

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """Returns the logit of each class at each position, (B, P): differentiable, and increasing with the detection's
        score."""

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6), highest score first: class, score from 0 to 1, left, top, right,
        bottom. Rows of class -1 are padding. Asynchronous.

        Args:
            outputs: outputs of the network.
            F: MXNet's operators, by default `nd`; with `sym`, constants become part of the graph, see
                `operators.constant`.
        """


@dataclass(frozen=True)
class Draws:
    """Number of uniform random numbers per image for a detector that samples anchors or regions.

    Attributes:
        targets: numbers for the loss, which are its last argument.
        regions: numbers for the network in training, in addition to one for each true box.
    """

    targets: int
    regions: int


class Detector(Model):
    """Base class of object detectors."""

    takes: ClassVar[Takes] = Takes(Images, Boxes)
    weighs_boxes: ClassVar[bool] = False
    """If true, the coding passes the weight of each box to the loss; see `boxes.weights`."""
    size_multiple: ClassVar[int] = 1
    """Divisor of the height and width of images, in pixels."""
    explains: ClassVar[bool] = True
    """If true, the gradient of a score with respect to the image is meaningful."""

    @property
    def title(self) -> str:
        """Returns the name of the network in messages."""
        return type(self).__name__

    def draws(self, input_shape: Shape) -> Optional[Draws]:
        """Returns the number of random numbers that the network and its loss need for sampling.

        In training, the inputs of such a network are images, true boxes (B, M, D) and random numbers (B, regions + M).
        The last argument of its loss are random numbers (B, targets).

        Args:
            input_shape: (C, H, W) of the network's input.

        Returns:
            The numbers; None if nothing is sampled.
        """
        return None

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """Returns the translation between boxes and the network's outputs.

        Args:
            num_classes: number of object classes.
            input_shape: (C, H, W) of the network's input.
        """
        raise NotImplementedError

    def require_sizes(self, sizes: Sequence[Sequence[int]]) -> None:
        """Rejects image sizes that the network cannot be trained with in turn.

        Args:
            sizes: (height, width) in pixels; empty: all batches have one size.

        Raises:
            ConfigError: a size does not fit; the message says what to type.
        """
        for size in sizes:
            self.require_multiple(size, "dataset.image_sizes")

    def require_multiple(self, size: Sequence[int], field: str = "dataset.image_size") -> None:
        """Rejects images whose sides are not multiples of `size_multiple`.

        Args:
            size: height and width in pixels.
            field: setting that has the size, for the message.

        Raises:
            ConfigError: a side is not a multiple; the message names the next larger size.
        """
        if any(side % self.size_multiple for side in size):
            fitting = ",".join(str(-(-side // self.size_multiple) * self.size_multiple) for side in size)
            raise ConfigError(
                f"{self.title}: the sides of images must be multiples of "
                f"{self.size_multiple}, but they are {size[0]}x{size[1]}. Type {field}=[{fitting}]"
                f"{' in its place' if field == 'dataset.image_sizes' else ''}."
            )


class InstanceDetector(Detector):
    """Base class of instance segmentation networks.

    Their coding encodes boxes with masks, see `mask_rows`. Detections (B, N, 6 + S * S) include a mask of the inside of
    the box, from 0 to 1; S is usually `mask_rows.PREDICTED_SIDE`.
    """

    takes: ClassVar[Takes] = Takes(Images, Masks)
