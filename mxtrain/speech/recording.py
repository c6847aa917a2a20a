"""Reads recordings in the formats that are usual for speech, at any rate, as one channel of float32.

Legend: S samples of sound.
"""

from __future__ import annotations

import math
import os
import re
from typing import BinaryIO, Optional, Tuple

import numpy as np

from mxtrain.data.checking.problems import UNREADABLE_AUDIO
from mxtrain.data.loading.regular_files import open_regular
from mxtrain.errors import DataError, LoaderError
from mxtrain.files.regular_files import AnyPath
from mxtrain.speech.sound_length import find_sound_bytes

ENDINGS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".sph", ".w64", ".caf")
"""Of files that are looked for in folders to predict for."""
FORMATS = "WAV, RF64, W64, FLAC, Ogg, MP3, AIFF, AU, CAF and NIST SPHERE"
"""The formats that are read. libsndfile knows more, such as MATLAB's: few files, and many advisories."""
_HEAD = re.compile(
    rb"RIF[FX].{4}WAVE|RF64.{4}WAVE|riff|fLaC|OggS|ID3|\xff[\xe0-\xff]|FORM.{4}AIF[FC]|\.snd|dns\.|caff|NIST_1A",
    re.DOTALL,
)
"""The first bytes of `FORMATS`."""
SILENT_AUDIO = "silent_audio"
CUT_AUDIO = "cut_audio"
MOST_SECONDS = 3600.0
"""Of one utterance: more does not fit into the memory that a sample may take."""
_RATES = (1000, 768_000)
_MOST_CHANNELS = 64


class RecordingError(LoaderError):
    """A recording cannot be used; `fact` is the end of a sentence that begins with its source location."""


def read_recording(path: AnyPath, rate: int, begin_s: float = 0.0, duration_s: Optional[float] = None) -> np.ndarray:
    """Returns the sound of a file or of a part of it, (S,) float32 at `rate`; channels are averaged.

    Args:
        path: of the file.
        rate: samples a second.
        begin_s: where the part begins.
        duration_s: its length; None = to the end.

    Raises:
        RecordingError: it is missing, no recording, cut, silent, or holds no numbers.
    """
    try:
        with open_regular(path) as (file, _):
            _refuse_other_formats(file)
            _refuse_cut(file)
            sound_SC, own_rate = _read(file, begin_s, duration_s)
    except DataError as error:
        fact = str(error).replace(f"'{path}' ", "", 1)
        raise RecordingError(fact, kind=UNREADABLE_AUDIO) from error
    sound_S = sound_SC.mean(axis=1, dtype=np.float32)
    if not np.isfinite(sound_S).all():
        raise RecordingError("holds samples that are no finite numbers.", kind=UNREADABLE_AUDIO)
    if not len(sound_S) or float(np.ptp(sound_S)) < 2.0**-15:
        raise RecordingError("is silent: all of its samples are the same.", kind=SILENT_AUDIO)
    return resampled(sound_S, own_rate, rate)


def resampled(sound_S: np.ndarray, own_rate: int, rate: int) -> np.ndarray:
    """Sound at another rate, by a polyphase filter."""
    if own_rate == rate:
        return sound_S
    import scipy.signal

    common = math.gcd(own_rate, rate)
    return scipy.signal.resample_poly(sound_S, rate // common, own_rate // common).astype(np.float32)


def _read(file: BinaryIO, begin_s: float, duration_s: Optional[float]) -> Tuple[np.ndarray, int]:
    """(S, channels) at the file's own rate, which is returned, too."""
    import soundfile

    try:
        with soundfile.SoundFile(file.fileno(), closefd=False) as sound:
            rate, channels = sound.samplerate, sound.channels
            if not _RATES[0] <= rate <= _RATES[1] or channels > _MOST_CHANNELS:
                raise RecordingError(f"has {rate} samples a second and {channels} channels.", kind=UNREADABLE_AUDIO)
            if not sound.frames:
                fact = "is empty: its header says that it holds no sound."
                raise RecordingError(fact, kind=SILENT_AUDIO)
            begin = round(begin_s * rate)
            count = max(sound.frames - begin, 0) if duration_s is None else round(duration_s * rate)
            if count > MOST_SECONDS * rate:
                fact = f"is {count / rate:,.0f} seconds long; at most {MOST_SECONDS:,.0f} are read as one utterance."
                raise RecordingError(fact, kind=UNREADABLE_AUDIO)
            if begin > sound.frames:
                fact = f"is cut: it ends after {sound.frames / rate:.2f} s, and {begin_s:.2f} s are asked for."
                raise RecordingError(fact, kind=CUT_AUDIO)
            sound.seek(begin)
            found_SC = sound.read(min(count, sound.frames - begin), dtype="float32", always_2d=True)
            missing = count - len(found_SC)
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        said = str(error).partition(": ")[2] or str(error) or type(error).__name__
        raise RecordingError(f"is no recording that can be read: {said.rstrip('.')}.", kind=UNREADABLE_AUDIO) from error
    if missing > max(0.02 * rate, 1):  # times in manifests are rounded
        raise RecordingError(f"is cut: its last {missing / rate:.2f} s are missing.", kind=CUT_AUDIO)
    return found_SC, rate


def is_recording(head: bytes) -> bool:
    """Returns True if a file begins as one of `FORMATS`; `head` has its first 12 bytes."""
    return _HEAD.match(head) is not None


def _refuse_other_formats(file: BinaryIO) -> None:
    """Raises: RecordingError: the file is in none of `FORMATS`, so that libsndfile is not asked for it."""
    if not is_recording(os.pread(file.fileno(), 12, 0)):
        fact = f"is no recording that can be read: {FORMATS} are, and its first bytes are of none of these."
        raise RecordingError(fact, kind=UNREADABLE_AUDIO)


def _refuse_cut(file: BinaryIO) -> None:
    """Refuses a file with fewer bytes of sound than its header says, which libsndfile reads without a word.

    Raises:
        RecordingError: it is.
    """
    sound = find_sound_bytes(lambda place, size: os.pread(file.fileno(), size, place))
    if sound is None:
        return
    there = max(os.fstat(file.fileno()).st_size - sound.begin, 0)
    if sound.length is not None and sound.length > there:
        fact = f"is cut: {there / sound.length:.0%} of what its header says is there."
        raise RecordingError(fact, kind=CUT_AUDIO)


def require_soundfile() -> None:
    """Raises: DataError: the library is not installed."""
    try:
        import soundfile  # noqa: F401
    except (ImportError, OSError) as error:
        raise DataError(f"soundfile reads recordings, and cannot be used ({error}): pip install soundfile") from error
