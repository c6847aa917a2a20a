"""Formats and limits of recordings. Exported folders have a copy of this module."""

from __future__ import annotations

import re

ENDINGS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".sph", ".w64", ".caf")
"""Extensions of the recordings that `predict` reads from folders."""
FORMATS = "WAV, RF64, W64, FLAC, Ogg, MP3, AIFF, AU, CAF and NIST SPHERE"
"""Supported formats. libsndfile supports more, such as MATLAB's, which are rare and had many security advisories."""
HEAD = re.compile(
    rb"RIF[FX].{4}WAVE|RF64.{4}WAVE|riff|fLaC|OggS|ID3|\xff[\xe0-\xff]|FORM.{4}AIF[FC]|\.snd|dns\.|caff|NIST_1A",
    re.DOTALL,
)
"""The first bytes of `FORMATS`."""
CONVERTIBLE = re.compile(rb".{4}ftyp|\x1a\x45\xdf\xa3|\x30\x26\xb2\x75|#!AMR", re.DOTALL)
"""The first bytes of M4A, WebM, WMA and AMR."""
MAX_SECONDS = 3600.0
"""Maximum length of one utterance: longer ones exceed the memory limit of a sample."""
RATES = (1000, 768_000)
"""Smallest and largest rate in Hz."""
MAX_CHANNELS = 64


def format_fault(head: bytes) -> str:
    """Returns the end of a sentence on a file that has none of `FORMATS`; empty if it has one.

    Args:
        head: the first 12 bytes of the file.
    """
    if HEAD.match(head):
        return ""
    if CONVERTIBLE.match(head):
        reason = "and this is M4A, WebM, WMA or AMR: convert it with `ffmpeg -i FILE FILE.flac`"
    else:
        reason = "and its first bytes are of none of these"
    return f"is no recording that can be read: {FORMATS} are, {reason}"
