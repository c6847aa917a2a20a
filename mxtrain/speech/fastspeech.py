"""A network that speaks symbols with given durations, like FastSpeech."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pydantic

from mxtrain.speech.kinds import MelFrames, Symbols
from mxtrain.speech.model import Odd, SymbolModel, check_block
from mxtrain.types import OpenFraction, Positive, Shapes, shapes_of
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon


class FastSpeech(SymbolModel):
    """Blocks over symbols, a length regulator that repeats the features of a symbol for each of its frames, and blocks
    over frames.

    Source: Ren et al., "FastSpeech", https://arxiv.org/abs/1905.09263. Durations are given and not predicted; blocks
    are those of `model=conformer`, and the position of a frame enters as four numbers instead of sinusoids.
    """

    takes: ClassVar[Takes] = Takes(Symbols, MelFrames)

    units: Positive = 96
    """Width of the residual stream between blocks."""
    hidden_size: Positive = 192
    """Hidden width of the feed-forward sublayers."""
    num_heads: Positive = 2
    """Number of attention heads; a divisor of units."""
    encoder_layers: Positive = 1
    """Blocks over symbols."""
    decoder_layers: Positive = 2
    """Blocks over frames."""
    encoder_kernel: Odd = 5
    """Kernel size of a block's convolution in symbols, odd."""
    decoder_kernel: Odd = 13
    """Kernel size of a block's convolution in frames, odd."""
    dropout: OpenFraction = 0.0
    """Dropout probability after each sublayer of a block and of attention weights."""

    @pydantic.model_validator(mode="after")
    def _check_block(self) -> FastSpeech:
        kernels = {"encoder_kernel": self.encoder_kernel, "decoder_kernel": self.decoder_kernel}
        check_block(self.units, self.num_heads, **kernels)
        return self

    def build_symbols(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.HybridBlock:
        """See `networks.fastspeech.FastSpeechNetwork`.

        Args:
            num_classes: mel bands.
            input_shape: shape of each of its four inputs.
            vocab_size: symbols that there are.
        """
        from mxtrain.speech.networks.conformer import ConformerSizes
        from mxtrain.speech.networks.fastspeech import FastSpeechNetwork

        encoder, decoder = (
            ConformerSizes(self.units, self.hidden_size, self.num_heads, kernel, self.dropout)
            for kernel in (self.encoder_kernel, self.decoder_kernel)
        )
        return FastSpeechNetwork(
            num_classes,
            vocab_size,
            shapes_of(input_shape)[3][1],
            encoder,
            decoder,
            self.encoder_layers,
            self.decoder_layers,
            prefix="",
        )
