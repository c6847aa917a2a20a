"""Reads recordings that clients of `mxtrain serve` send. Imports no MXNet."""

from __future__ import annotations

import io
import os
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np

from mxtrain.errors import DataError, LoaderError
from mxtrain.files.json_form import problems_of
from mxtrain.serving.errors import RequestError
from mxtrain.speech.alphabet import Alphabet
from mxtrain.speech.log_mel import log_mel, stored
from mxtrain.speech.recording import FORMATS, is_recording, read_recording
from mxtrain.speech.signature import AudioSignature

MAX_SECONDS = 120.0
MAX_VALUES = 1 << 26
"""Numbers of a decoded recording, all channels together: a compressed one may hold far more than its bytes."""


class SoundReader:
    """Reads a recording as frames, and scores as text.

    Args:
        signature: of the checkpoint.
        inputs: `TensorSpec`s of frames and their number.
    """

    kind = "sound"
    media_types = ("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/flac", "audio/ogg", "audio/mpeg")

    def __init__(self, signature: AudioSignature, inputs: Sequence[Any]) -> None:
        self._features, self._alphabet = signature.audio, Alphabet(list(signature.class_names))
        self._inputs = inputs

    def read(self, body: bytes, media_type: str, max_pixels: int) -> Dict[str, np.ndarray]:
        """See `BodyReader.read`."""
        _refuse_long(body)
        descriptor = os.memfd_create("sound", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(body)
            sound_S = read_recording(f"/proc/self/fd/{descriptor}", self._features.sample_rate)
        except LoaderError as error:
            raise RequestError(400, f"the recording {error.fact}") from error
        except DataError as error:
            raise RequestError(400, "the recording cannot be read.") from error
        finally:
            os.close(descriptor)
        frames_TF = stored(log_mel(sound_S, self._features)).astype(np.float32)
        fixed = self._inputs[0].dims[1]
        if isinstance(fixed, int):
            if len(frames_TF) > fixed:
                raise RequestError(413, f"the recording has {len(frames_TF)} frames; at most {fixed} are read.")
            padded_TF = np.zeros((fixed, frames_TF.shape[1]), np.float32)
            padded_TF[: len(frames_TF)] = frames_TF
        else:
            padded_TF = frames_TF
        found = padded_TF[None], np.array([len(frames_TF)], np.float32)
        return {spec.name: array.astype(spec.dtype) for spec, array in zip(self._inputs, found)}

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> Optional[Dict[str, Any]]:  # fmt: skip
        """Returns the text of the most probable character of each frame (greedy CTC)."""
        score_TK = next(iter(outputs.values()))[0]
        blank = len(self._alphabet.characters)
        if score_TK.ndim != 2 or score_TK.shape[1] != blank + 1:
            return None
        frames, taken = (inputs[spec.name] for spec in self._inputs)
        counted = -(-len(score_TK) * int(taken[0]) // frames.shape[1])  # the rest is padding
        best_T = score_TK[:counted].argmax(axis=1)
        before_T = np.concatenate([[blank], best_T[:-1]])
        return {"text": self._alphabet.decode(np.where((best_T != before_T) & (best_T != blank), best_T, -1))}


def _refuse_long(body: bytes) -> None:
    """Raises: RequestError: the recording is none, or would become too many numbers."""
    import soundfile

    if not is_recording(body[:12]):
        raise RequestError(400, f"the body is no recording that can be read: {FORMATS} are.")
    try:
        about = soundfile.info(io.BytesIO(body))
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        raise RequestError(400, "the body is no recording that can be read.") from error
    if about.frames > MAX_SECONDS * about.samplerate or about.frames * about.channels > MAX_VALUES:
        raise RequestError(413, f"the recording is longer than {MAX_SECONDS:g} s, or has too many channels.")


def make_sound_reader(values: Dict[str, Any], inputs: Sequence[Any]) -> Optional[SoundReader]:
    """Returns the reader for a network that recognises speech; None for others.

    Raises:
        ValueError: the signature is damaged.
    """
    if values.get("task") != "speech_recognition" or [len(spec.dims) for spec in inputs] != [3, 1]:
        return None
    for problem in problems_of(values["signature"], AudioSignature.form):
        raise ValueError(problem)
    return SoundReader(AudioSignature.from_json(values["signature"]), inputs)


READERS = {"AudioSignature": make_sound_reader}
"""Of `mxtrain.serving.readers`: by the name of a signature's class."""
