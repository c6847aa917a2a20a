"""Random streams of speech."""

from __future__ import annotations

from mxtrain.types import NamedInt


class SpeechDraw(NamedInt):
    """Random streams of speech; see `mxtrain.data.loading.randomness.Draw`."""

    LINE_LENGTH = 720
    LINE_LOOK = 721
    LINE_NOISE = 722
    LINE_LAYOUT = 723
    """And 3 above it: what a line of digits says, and how wide it is."""
    SPEC_AUGMENT = 727
    """And those above it up to 730: where stripes of a spectrogram are hidden."""
    SPOKEN_TEXT = 731
    SPOKEN_DURATION = 732
    CLIP_LOOK = 733
    """Content of a synthesised clip, and parts of noise recordings that are samples of silence."""
    CLIP_AUGMENT = 734
    """Shift, level and noise of a clip in training."""
