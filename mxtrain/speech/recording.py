"""Reads recordings in the formats that are usual for speech, at any rate, as one channel of float32.

Legend: S samples of sound.
"""

from __future__ import annotations

import os
from typing import BinaryIO, NamedTuple, Optional, Tuple

import numpy as np

from mxtrain.data.checking.problems import UNREADABLE_AUDIO
from mxtrain.data.loading.dataset_files import open_regular
from mxtrain.errors import DataError, LoaderError
from mxtrain.files.regular_files import AnyPath
from mxtrain.speech.resampling import resampled
from mxtrain.speech.sound_checks import CUT_AUDIO as CUT_AUDIO
from mxtrain.speech.sound_checks import SILENT_AUDIO as SILENT_AUDIO
from mxtrain.speech.sound_checks import SoundProblem, problem_of_length, problem_of_missing, problem_of_sound
from mxtrain.speech.sound_formats import ENDINGS as ENDINGS
from mxtrain.speech.sound_formats import MAX_CHANNELS, MAX_SECONDS, RATES, format_fault


class RecordingError(LoaderError):
    """A recording cannot be used; `fact` is the end of a sentence that begins with its source location."""


def read_recording(path: AnyPath, rate: int, begin_s: float = 0.0, duration_s: Optional[float] = None) -> np.ndarray:
    """Returns the sound of a file or of a part of it, (S,) float32 at `rate`; channels are averaged.

    Args:
        path: path of the file.
        rate: sample rate of the result in Hz.
        begin_s: start of the part, in seconds.
        duration_s: length of the part, in seconds; None = to the end.

    Raises:
        RecordingError: the file is missing, no recording, truncated, silent, or has values that are not finite.
    """
    try:
        with open_regular(path) as (file, _):
            _refuse_other_formats(file)
            _refuse_cut(file)
            sound_SC, source_rate = _read(file, begin_s, duration_s)
    except DataError as error:
        # Problems are kept in the cache by content, and the same content may have another name next time.
        fact = str(error).replace(f"'{path}' ", "", 1)
        raise RecordingError(fact, kind=UNREADABLE_AUDIO) from error
    sound_S = sound_SC.mean(axis=1, dtype=np.float32)
    _refuse(problem_of_sound(sound_SC, sound_S))
    return resampled(sound_S, source_rate, rate)


def _read(file: BinaryIO, begin_s: float, duration_s: Optional[float]) -> Tuple[np.ndarray, int]:
    """Returns the sound (S, channels) of a part of a file, and its sample rate in Hz."""
    import soundfile

    try:
        with soundfile.SoundFile(file.fileno(), closefd=False) as sound:
            rate, channels = sound.samplerate, sound.channels
            if not RATES[0] <= rate <= RATES[1] or channels > MAX_CHANNELS:
                raise RecordingError(f"has {rate} samples a second and {channels} channels.", kind=UNREADABLE_AUDIO)
            if not sound.frames:
                fact = "is empty: its header says that it holds no sound."
                raise RecordingError(fact, kind=SILENT_AUDIO)
            begin = round(begin_s * rate)
            count = max(sound.frames - begin, 0) if duration_s is None else round(duration_s * rate)
            if count > MAX_SECONDS * rate:
                fact = f"is {count / rate:,.0f} seconds long; at most {MAX_SECONDS:,.0f} are read as one utterance."
                raise RecordingError(fact, kind=UNREADABLE_AUDIO)
            if begin > sound.frames:
                fact = f"is cut: it ends after {sound.frames / rate:.2f} s, and {begin_s:.2f} s are asked for."
                raise RecordingError(fact, kind=CUT_AUDIO)
            if begin or sound.seekable():  # also to 0: a seek changes the last bits of MP3 files
                sound.seek(begin)
            sound_SC = sound.read(min(count, sound.frames - begin), dtype="float32", always_2d=True)
            missing = count - len(sound_SC)
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        reason = str(error).partition(": ")[2] or str(error) or type(error).__name__
        if reason.startswith("File does not exist"):  # libsndfile on MP3 files without a whole frame
            reason = "its content is damaged"
        fact = f"is no recording that can be read: {reason.rstrip('.')}."
        raise RecordingError(fact, kind=UNREADABLE_AUDIO) from error
    _refuse(problem_of_missing(missing, rate))
    return sound_SC, rate


class SoundHeader(NamedTuple):
    """Facts in the header of a recording.

    Attributes:
        rate: sample rate in Hz.
        channels: number of channels.
        seconds: length in seconds.
    """

    rate: int
    channels: int
    seconds: float


def read_header(path: AnyPath) -> SoundHeader:
    """Returns the facts in the header of a recording.

    Raises:
        RecordingError: the file is missing or no recording.
    """
    import soundfile

    try:
        with open_regular(path) as (file, _):
            _refuse_other_formats(file)
            with soundfile.SoundFile(file.fileno(), closefd=False) as sound:
                return SoundHeader(sound.samplerate, sound.channels, float(sound.frames / sound.samplerate))
    except (DataError, soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"is no recording that can be read: {error}", kind=UNREADABLE_AUDIO) from error


def _refuse_other_formats(file: BinaryIO) -> None:
    """Raises a `RecordingError` if `format_fault` finds another format, before libsndfile parses it."""
    fault = format_fault(os.pread(file.fileno(), 12, 0))
    if fault:
        raise RecordingError(f"{fault}.", kind=UNREADABLE_AUDIO)


def _refuse_cut(file: BinaryIO) -> None:
    """Raises a `RecordingError` if a file has fewer bytes of sound than its header says, which libsndfile ignores."""
    size = os.fstat(file.fileno()).st_size
    _refuse(problem_of_length(lambda offset, count: os.pread(file.fileno(), count, offset), size))


def _refuse(problem: Optional[SoundProblem]) -> None:
    if problem is not None:
        raise RecordingError(problem.fact, kind=problem.kind)


def require_soundfile() -> None:
    """Raises a `DataError` if the library soundfile is not installed."""
    try:
        import soundfile  # noqa: F401
    except (ImportError, OSError) as error:
        raise DataError(f"soundfile reads recordings, and cannot be used ({error}): pip install soundfile") from error
