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
MAX_SECONDS = 3600.0
"""Maximum length of one utterance: longer ones exceed the memory limit of a sample."""
RATES = (1000, 768_000)
"""Smallest and largest rate in Hz."""
MAX_CHANNELS = 64
