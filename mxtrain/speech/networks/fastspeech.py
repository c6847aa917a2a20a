"""FastSpeech with given durations: encoder, length regulator, decoder. Imports MXNet.

Outputs of a sample depend neither on padding nor on other samples of the batch; see `networks.conformer`, whose blocks
replace the feed-forward Transformer blocks of the paper: both have convolutions, and these have rotary positions.

Source: Ren et al., "FastSpeech: Fast, Robust and Controllable Text to Speech" (2019), https://arxiv.org/abs/1905.09263,
without the predictor of durations: they are given.

Legend: B batch, L symbols, T frames, P numbers of the position of a frame, U units, F mel bands. Inside, time comes
first, (L, B, U) or (T, B, U).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.engine.backend import gluon, mx
from mxtrain.speech.networks.conformer import ConformerBlock, ConformerSizes
from mxtrain.speech.networks.speech import frame_mask

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn


class FastSpeechNetwork(gluon.HybridBlock):
    """Maps symbols (B, L), their lengths (B,), the symbol index of each frame (B, T), -1 = padding, and frame positions
    (B, T, P) to frames (B, T, F).

    Args:
        num_mels: F.
        num_symbols: number of symbols.
        num_positions: P.
        encoder, decoder: sizes of the blocks of encoder and decoder, with equal units.
        encoder_layers, decoder_layers: number of blocks.
    """

    def __init__(
        self,
        num_mels: int,
        num_symbols: int,
        num_positions: int,
        encoder: ConformerSizes,
        decoder: ConformerSizes,
        encoder_layers: int,
        decoder_layers: int,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        units = encoder.units
        with self.name_scope():
            self.embedding = nn.Embedding(num_symbols, units, weight_initializer=mx.init.Normal(0.3))
            self.encoder, self.decoder = nn.HybridSequential(prefix=""), nn.HybridSequential(prefix="")
            for number in range(encoder_layers):
                self.encoder.add(ConformerBlock(encoder, prefix=f"encoder{number}_"))
            self.place = nn.Dense(units, flatten=False, in_units=num_positions, prefix="place_")
            for number in range(decoder_layers):
                self.decoder.add(ConformerBlock(decoder, prefix=f"decoder{number}_"))
            self.output = nn.Dense(num_mels, flatten=False, in_units=units)

    def hybrid_forward(
        self, F: OperatorModule, symbol_BL: Array, length_B: Array, index_BT: Array, place_BTP: Array
    ) -> Array:
        x_BLU = self.embedding(symbol_BL)
        mask_BL = frame_mask(F, x_BLU, length_B)
        x_LBU = F.transpose(x_BLU, axes=(1, 0, 2))
        for block in self.encoder:
            x_LBU = block(x_LBU, _time_first(F, mask_BL), length_B)
        mask_BT = F.BlockGrad(index_BT >= 0)
        x_BTU = regulate(F, F.transpose(x_LBU, axes=(1, 0, 2)), index_BT) + self.place(place_BTP)
        x_TBU, count_B = F.transpose(x_BTU, axes=(1, 0, 2)), F.sum(mask_BT, axis=1)
        for block in self.decoder:
            x_TBU = block(x_TBU, _time_first(F, mask_BT), count_B)
        return self.output(F.transpose(x_TBU, axes=(1, 0, 2)))


def regulate(F: OperatorModule, x_BLU: Array, index_BT: Array) -> Array:
    """Repeats the features of the symbol of each frame (length regulator), (B, T, U); padding frames are undefined."""
    # First symbol of each sample in the concatenation of all samples.
    number_BL1 = F.contrib.arange_like(F.slice_axis(x_BLU, axis=2, begin=0, end=1))
    begin_B1 = F.BlockGrad(F.reshape(F.slice_axis(number_BL1, axis=1, begin=0, end=1), shape=(-1, 1)))
    # Indices are relative to their own sample, so slices of a batch (replicas, microbatches) stay right.
    row_BT = F.broadcast_add(F.relu(F.BlockGrad(index_BT)), begin_B1)
    # Not gather_nd: its gradient adds up by atomic operations, in any order.
    return F.take(F.reshape(x_BLU, shape=(-3, 0)), row_BT, axis=0)


def _time_first(F: OperatorModule, mask_BT: Array) -> Array:
    """Converts (B, T) to (T, B, 1)."""
    return F.expand_dims(F.transpose(mask_BT, axes=(1, 0)), axis=2)
