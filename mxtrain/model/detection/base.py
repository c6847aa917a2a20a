"""The protocols of networks that find things in pictures. Imports no MXNet.

Legend: B batch, M boxes of a picture, N detections.
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


class BoxCoding(Protocol):
    """What a family of networks makes of boxes. Boxes are in pixels of what enters the network."""

    @property
    def output_shapes(self) -> Sequence[Shape]:
        """Of what the network returns for one sample; empty where only the network knows."""

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """What the network's outputs are compared with, each (B, ...) float32.

        Args:
            box_BMD: as `boxes.Column` says.
        """

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """A number for each class at each place, (B, P), which rises with the score of what is detected there, and of
        which gradients can be taken: before a sigmoid or softmax."""

    def decode(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """Detections (B, N, 6), the surest first: class, score from 0 to 1, left, top, right, bottom; rows of class -1
        are none. Asynchronous."""


@dataclass(frozen=True)
class Draws:
    """Random numbers from 0 to 1 that are wanted for each picture.

    Attributes:
        targets: of the loss, after what the coding makes of boxes.
        regions: of the network, besides one for each true box.
    """

    targets: int
    regions: int


class Detector(Model):
    """Base of the descriptions of networks that find things."""

    serves: ClassVar[Tuple[str, ...]] = ("detection",)
    loss_option: ClassVar[str] = ""
    """The option of conf/loss/ that its outputs are made for."""

    weighs_boxes: ClassVar[bool] = False
    """Whether what its coding makes of boxes says how much each counts, see `boxes.weights`."""
    size_multiple: ClassVar[int] = 1
    """Sides of pictures are multiples of it."""
    explains: ClassVar[bool] = True
    """Whether the score of a place has a gradient with respect to the picture that means something."""

    def draws(self, input_shape: Shape) -> Optional[Draws]:
        """The random numbers that a network which samples wants; it takes, in training, true boxes (B, M, D) and its
        numbers (B, regions + M) after the picture, and its loss others at the end. None: it samples nothing."""
        return None

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """What boxes and outputs have to do with each other.

        Args:
            num_classes: of things.
            input_shape: (C, H, W) of what enters the network.
        """
        raise NotImplementedError

    def require_sizes(self, sizes: Sequence[Sequence[int]]) -> None:
        """Whether batches of training can have these sizes, (height, width) each, in turn.

        Raises:
            ConfigError: they can't; says why, and what to type.
        """
        for size in sizes:
            self.require_multiple(size, "dataset.image_sizes")

    def require_multiple(self, size: Sequence[int], field: str = "dataset.image_size") -> None:
        """Raises: ConfigError: the sides of pictures are no multiples of `size_multiple`."""
        if any(side % self.size_multiple for side in size):
            fitting = ",".join(str(-(-side // self.size_multiple) * self.size_multiple) for side in size)
            own = getattr(self, "name", None)
            raise ConfigError(
                f"{f'model.name={own}' if own else type(self).__name__}: the sides of pictures must be multiples of "
                f"{self.size_multiple}, but they are {size[0]}x{size[1]}. Type {field}=[{fitting}]"
                f"{' in its place' if field == 'dataset.image_sizes' else ''}."
            )


class InstanceDetector(Detector):
    """Base of the descriptions of networks that find things and their masks.

    Their coding is given boxes with masks, as `mask_rows` says, and its detections have a mask each, too: (B, N,
    6 + S * S), from 0 to 1, of what is inside the box, `mask_rows.FOUND_SIDE` squares high and wide as a rule.
    """

    serves: ClassVar[Tuple[str, ...]] = ("instance_segmentation",)
