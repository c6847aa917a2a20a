"""Kinds of samples and targets of speech."""

from __future__ import annotations

from typing import ClassVar

from mxtrain.types.kinds import Arrays, SampleKind, Sentence, TargetKind


class Frames(SampleKind):
    """Frames of a recording or of a line of handwriting, (B, T, F), and their numbers (B,)."""

    name: ClassVar[str] = "frames"


class Spectrograms(Arrays):
    """Log-mel frames of clips of one length, (B, 1, T, F)."""

    name: ClassVar[str] = "spectrograms"


class Symbols(SampleKind):
    """Symbols of a text to be spoken, with their durations in frames."""

    name: ClassVar[str] = "symbols"


class Transcripts(Sentence):
    """The symbols of a transcript, (B, L), without their alignment with frames."""


class MelFrames(TargetKind):
    """Log-mel frames of a recording, (B, T, F)."""
