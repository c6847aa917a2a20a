"""The protocols of networks that find objects in images. Imports no MXNet.

Legend: B batch, M boxes of an image, N detections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Optional, Protocol, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.model.base import Model
from mxtrain.types import Shape

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Array, OperatorModule


class BoxCoding(Protocol):
    """Translates between boxes and the outputs of a family of networks. Boxes are in pixels of the network's input.
    """

    @property
    def output_shapes(self) -> Sequence[Shape]:
        """Returns the shapes of the network's outputs for one sample; empty if only the network knows."""

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Returns the targets that the network's outputs are compared with, each (B, ...) float32.

        Args:
            box_BMD: as `boxes.Column` says.
        """

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """Returns a number for each class at each place, (B, P), as before a sigmoid or softmax: it rises with the
        score of the detection there, and it is differentiable."""

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6), highest score first: class, score from 0 to 1, left, top, right,
        bottom. Rows of class -1 are padding. Asynchronous.

        Args:
            outputs: of the network.
            F: MXNet's operators, by default of arrays; operators of a graph keep constants, see `operators.constant`.
        """


@dataclass(frozen=True)
class Draws:
    """Number of uniform random numbers that a sampling detector takes for each image.

    Attributes:
        targets: what the loss takes, as its last argument.
        regions: what the network takes in training, besides one for each true box.
    """

    targets: int
    regions: int


class Detector(Model):
    """Base of the descriptions of networks that find objects."""

    tasks: ClassVar[Tuple[str, ...]] = ("detection",)
    loss_option: ClassVar[str] = ""
    """The option of conf/loss/ that its outputs are made for."""

    weighs_boxes: ClassVar[bool] = False
    """If true, its coding passes the weight of each box to the loss; see `boxes.weights`."""
    size_multiple: ClassVar[int] = 1
    """Divisor of the height and width of images, in pixels."""
    explains: ClassVar[bool] = True
    """If true, the gradient of a place's score with respect to the image is meaningful."""

    @property
    def title(self) -> str:
        """Returns the network as messages call it."""
        return type(self).__name__

    def draws(self, input_shape: Shape) -> Optional[Draws]:
        """Returns the number of random numbers of the network and its loss, if they sample what they are trained on.

        In training such a network takes images, true boxes (B, M, D) and numbers (B, regions + M); its loss takes
        numbers (B, targets) as its last argument.

        Args:
            input_shape: (C, H, W) of the network's input.

        Returns:
            None if nothing is sampled.
        """
        return None

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """Returns the translation between boxes and the network's outputs.

        Args:
            num_classes: of objects.
            input_shape: (C, H, W) of the network's input.
        """
        raise NotImplementedError

    def require_sizes(self, sizes: Sequence[Sequence[int]]) -> None:
        """Refuses sizes of images that batches of training cannot have in turn.

        Args:
            sizes: (height, width) each, in pixels; empty: all batches have one size.

        Raises:
            ConfigError: says why, and what to type.
        """
        for size in sizes:
            self.require_multiple(size, "dataset.image_sizes")

    def require_multiple(self, size: Sequence[int], field: str = "dataset.image_size") -> None:
        """Refuses images whose sides are not multiples of `size_multiple`.

        Args:
            size: height and width in pixels.
            field: that has the size, for the message.

        Raises:
            ConfigError: says which size fits.
        """
        if any(side % self.size_multiple for side in size):
            fitting = ",".join(str(-(-side // self.size_multiple) * self.size_multiple) for side in size)
            raise ConfigError(
                f"{self.title}: the sides of images must be multiples of "
                f"{self.size_multiple}, but they are {size[0]}x{size[1]}. Type {field}=[{fitting}]"
                f"{' in its place' if field == 'dataset.image_sizes' else ''}."
            )


class InstanceDetector(Detector):
    """Base of the descriptions of networks that find objects and their masks.

    Their coding is given boxes with masks, as `mask_rows` says, and its detections have a mask each, too: (B, N,
    6 + S * S), from 0 to 1, inside the box; S is usually `mask_rows.PREDICTED_SIDE`.
    """

    tasks: ClassVar[Tuple[str, ...]] = ("instance_segmentation",)
