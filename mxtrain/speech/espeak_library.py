"""eSpeak NG as a library: it says what its program does not, where each phoneme begins in the sound.

Source of the names and numbers: espeak-ng/src/include/espeak-ng/speak_lib.h, version 1.50 and later.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import threading
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional

import numpy as np

from mxtrain.errors import DataError

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

SILENCE = "_"
_SYNCHRONOUS, _PHONEME_EVENTS, _DONT_EXIT = 2, 0x0001, 0x8000
_END, _PHONEME, _UTF8, _RATE, _PITCH = 0, 7, 1, 1, 3
_LOCK = threading.Lock()
"""The library has one state for the whole process."""


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class SpokenPhonemes(NamedTuple):
    """Phonemes of a spoken text.

    Attributes:
        sound_S: int16.
        phonemes: in eSpeak NG's own names; `SILENCE` where nothing is said.
        end_N: sample behind the last of each, (N,) int64; that of the last is S.
    """

    sound_S: np.ndarray
    phonemes: List[str]
    end_N: np.ndarray


class Espeak:
    """The library. Its methods may be called from several threads; they take turns.

    Attributes:
        rate: samples a second.
        version: version of the library.

    Raises:
        DataError: it is not installed, or cannot be used.
    """

    def __init__(self) -> None:
        # find_library asks ldconfig or a compiler, which small containers lack; the loader may find the plain name.
        name = ctypes.util.find_library("espeak-ng") or "libespeak-ng.so.1"
        try:
            self._library: Any = ctypes.CDLL(name)
        except OSError as error:
            raise DataError(
                "dataset=spoken_numbers is spoken by eSpeak NG's library, which is not installed: apt-get install "
                "espeak-ng, or dnf install espeak-ng. Or type dataset=formant_digits, which needs nothing."
            ) from error
        self._library.espeak_Info.restype = ctypes.c_char_p
        # Without types ctypes passes whole numbers as int of 32 bits, which is too narrow for size_t.
        self._library.espeak_Synth.argtypes = (
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_uint,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )
        with _LOCK:
            # Without _DONT_EXIT the library ends the process where it finds no data.
            self.rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 0, None, _PHONEME_EVENTS | _DONT_EXIT)
            self.version: str = self._library.espeak_Info(None).decode("ascii", "replace")
        if self.rate <= 0:
            raise DataError("eSpeak NG's library finds no data: install the package espeak-ng-data.")

    def say(self, text: str, voice: str, speed: int, pitch: int = 50) -> SpokenPhonemes:
        """Speaks a text.

        Args:
            text: text to speak.
            voice: name of the voice, e.g. en-us or en-us+f2.
            speed: words a minute, about.
            pitch: 0 to 99.

        Raises:
            DataError: there is no such voice, or nothing was said.
        """
        parts: List[np.ndarray] = []
        events: List[Json] = []

        def take(sound: Any, count: int, event: Any) -> int:
            if sound and count > 0:
                # A copy, because the library uses its buffer again after the call.
                parts.append(np.ctypeslib.as_array(sound, (count,)).copy())
            position = 0
            while event[position].type != _END:
                if event[position].type == _PHONEME:
                    events.append([event[position].sample, event[position].id.string.decode("utf-8", "replace")])
                position += 1
            return 0

        # The variable keeps the function alive while the library calls it.
        callback, encoded = _Callback(take), text.encode()
        with _LOCK:
            if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
                raise DataError(f"dataset.voice={voice}: eSpeak NG has no such voice. `espeak-ng --voices` lists them.")
            self._library.espeak_SetParameter(_RATE, speed, 0)
            self._library.espeak_SetParameter(_PITCH, pitch, 0)
            self._library.espeak_SetSynthCallback(callback)
            self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _UTF8, None, None)
            self._library.espeak_Synchronize()
            # The library must not keep a pointer to a function that Python frees.
            self._library.espeak_SetSynthCallback(_Callback())
        if not parts or not events:
            raise DataError(f"eSpeak NG says nothing for '{text}' with the voice {voice}.")
        return joined(np.concatenate(parts), events)


def joined(sound_S: np.ndarray, events: List[Any]) -> SpokenPhonemes:
    """Converts (first sample, name) of each phoneme to phonemes with ends. Adjacent pauses are merged, empty ones are
    left out; silence precedes the first phoneme."""
    begins = [0, *(int(begin) for begin, _ in events), len(sound_S)]
    names = [SILENCE, *(SILENCE if not name or name.startswith("_") else name for _, name in events)]
    phonemes: List[str] = []
    ends: List[int] = []
    for name, begin, following in zip(names, begins, begins[1:]):
        end = min(following, len(sound_S))
        if end <= max(begin, ends[-1] if ends else 0):
            continue
        if phonemes and name == SILENCE == phonemes[-1]:
            ends[-1] = end
            continue
        phonemes.append(name)
        ends.append(end)
    ends[-1] = len(sound_S)
    return SpokenPhonemes(sound_S, phonemes, np.array(ends, np.int64))


_espeak: Optional[Espeak] = None


def espeak_library() -> Espeak:
    """Returns the library, which a process can begin once.

    Raises:
        DataError: it cannot be used.
    """
    global _espeak
    if _espeak is None:
        _espeak = Espeak()
    return _espeak
