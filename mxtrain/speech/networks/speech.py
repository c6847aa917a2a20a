"""Networks for CTC: convolutions, recurrent layers and an output layer. Imports MXNet, so descriptions import this
module only when they build.

Outputs of a sample depend neither on its padding nor on the other samples of the batch: padding is set to 0 before each
convolution, there is no batch norm, and backward recurrent layers start at the last frame, not in the padding.

Legend: B batch, T frames (of scores behind the convolutions), F numbers of a frame, C channels, U units, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from mxtrain.engine.backend import gluon
from mxtrain.model.networks.bert import LayerNorm
from mxtrain.model.networks.bilstm import BiLSTMLayer

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn
EPSILON = 1e-5


class ConvolutionSizes(NamedTuple):
    """Channels, kernel and step of a convolution, in time and over the numbers of a frame."""

    channels: int
    time_kernel: int
    frequency_kernel: int
    time_stride: int
    frequency_stride: int


def frame_mask(F: OperatorModule, frames_BTF: Array, length_B: Array) -> Array:
    """Returns the mask of frames, (B, T): 1 for the frames of a sample, 0 for padding."""
    place_1T = F.expand_dims(F.contrib.arange_like(frames_BTF, axis=1), axis=0)
    return F.broadcast_lesser(F.BlockGrad(place_1T), F.expand_dims(F.BlockGrad(length_B), axis=1))


class Convolutions(gluon.HybridBlock):
    """Subsampling convolutions.

    Inputs are frames (B, T, F) and a mask (B, T); outputs are (T', B, C * F') and their mask (B, T'), with T' = T /
    strides, rounded up.

    Args:
        width: F.
        sizes: sizes of each convolution.
    """

    def __init__(self, width: int, sizes: Sequence[ConvolutionSizes], **kwargs: Any):
        super().__init__(**kwargs)
        self._strides = [size.time_stride for size in sizes]
        self.width = width
        with self.name_scope():
            self.layers = nn.HybridSequential(prefix="")
            before = 1
            for size in sizes:
                self.layers.add(
                    nn.Conv2D(
                        size.channels,
                        (size.time_kernel, size.frequency_kernel),
                        (size.time_stride, size.frequency_stride),
                        (size.time_kernel // 2, size.frequency_kernel // 2),
                        in_channels=before,
                    )
                )
                # Padding by half an odd kernel gives ceil(width / stride) columns.
                before, self.width = size.channels, -(-self.width // size.frequency_stride)
        self.width *= before

    def hybrid_forward(self, F: OperatorModule, frames_BTF: Array, mask_BT: Array) -> Any:
        x_BCTF = F.expand_dims(frames_BTF, axis=1)
        for layer, stride in zip(self.layers, self._strides):
            if stride > 1:
                mask_BT = F.slice(mask_BT, begin=(None, None), end=(None, None), step=(1, stride))
            mask_B1T1 = F.expand_dims(F.expand_dims(mask_BT, axis=1), axis=3)
            # The bias of a convolution makes padding differ from 0, and the next convolution would read it.
            x_BCTF = F.broadcast_mul(F.relu(layer(x_BCTF)), mask_B1T1)
        return F.reshape(F.transpose(x_BCTF, axes=(2, 0, 1, 3)), shape=(0, 0, -1)), mask_BT


class RecurrentRecognizer(gluon.HybridBlock):
    """Deep Speech 2: convolutions, bidirectional LSTM layers with layer norm, and an output layer.

    Inputs are frames (B, T, F) and their numbers (B,); the output is scores (B, T', K).

    Args:
        num_classes: K.
        width: F.
        sizes: sizes of the convolutions.
        units: units per direction.
        num_layers: number of recurrent layers.
        dropout: dropout of the inputs of the recurrent layers and the output layer.
    """

    def __init__(
        self,
        num_classes: int,
        width: int,
        sizes: Sequence[ConvolutionSizes],
        units: int,
        num_layers: int,
        dropout: float,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        with self.name_scope():
            self.convolutions = Convolutions(width, sizes, prefix="convolutions_")
            self.norms = nn.HybridSequential(prefix="")
            self.layers = nn.HybridSequential(prefix="")
            before = self.convolutions.width
            for number in range(num_layers):
                # Layer norms replace the paper's batch norms, whose statistics would count padding.
                self.norms.add(LayerNorm(before, dropout, EPSILON, prefix=f"norm{number}_"))
                self.layers.add(BiLSTMLayer(before, units, prefix=f"layer{number}_"))
                before = 2 * units
            self.last_dropout = nn.Dropout(dropout)
            self.output = nn.Dense(num_classes, flatten=False, in_units=before)

    def hybrid_forward(self, F: OperatorModule, frames_BTF: Array, length_B: Array) -> Array:
        x_TBU, mask_BT = self.convolutions(frames_BTF, frame_mask(F, frames_BTF, length_B))
        length_B = F.sum(mask_BT, axis=1)
        for norm, layer in zip(self.norms, self.layers):
            x_TBU = layer(norm(x_TBU), length_B)
        return self.output(F.transpose(self.last_dropout(x_TBU), axes=(1, 0, 2)))
