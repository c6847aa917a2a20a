"""Reads recordings that clients of `mxtrain serve` send. Imports no MXNet."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence

import numpy as np

from mxtrain.data.exported_folder import targets_in
from mxtrain.errors import DataError, LoaderError
from mxtrain.files.json_form import require_form
from mxtrain.serving.errors import RequestError
from mxtrain.serving.readers import BodyLimits, ReadBody, UsualAnswer
from mxtrain.speech.clip_dataset import ClipSignature
from mxtrain.speech.exported_clips import clip_inputs
from mxtrain.speech.exported_speech import sound_inputs, text_of_scores
from mxtrain.speech.kinds import Frames, Spectrograms
from mxtrain.speech.recording import read_recording
from mxtrain.speech.signature import AudioSignature
from mxtrain.speech.sound_formats import format_fault

if TYPE_CHECKING:
    from mxtrain.data.exported_folder import ExportedFolder

MAX_SECONDS = 120.0
MAX_VALUES = 1 << 26
"""Numbers of a decoded recording, all channels together: a compressed one may hold far more than its bytes."""


class SoundReader:
    """Reads a recording as frames, and scores as text.

    Args:
        folder: exported folder.
        signature: signature of the checkpoint.
        inputs: `TensorSpec`s of frames and their number.
    """

    kind = "sound"
    media_types = ("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/flac", "audio/ogg", "audio/mpeg")
    example = ""
    columns = ()

    def __init__(self, folder: ExportedFolder, signature: AudioSignature, inputs: Sequence[Any]) -> None:
        self._folder, self._features, self._names = folder, signature.audio, signature.class_names
        self._inputs = inputs

    def read(self, body: bytes, media_type: str, limits: BodyLimits) -> ReadBody:
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
        try:
            return ReadBody(self.inputs_of(sound_S))
        except ValueError as error:
            raise RequestError(413, f"{error}.") from error

    def inputs_of(self, sound_S: np.ndarray) -> Dict[str, np.ndarray]:
        """Returns the inputs of the network for sound at its rate.

        Raises:
            ValueError: the sound is longer than the network takes.
        """
        return sound_inputs(self._folder.signature, sound_S, self._features, "the recording")[0]

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], about: Any
    ) -> Optional[Dict[str, Any]]:
        """Returns the text of the most probable character of each frame (greedy CTC): a beam search takes too long."""
        score_TK = next(iter(outputs.values()))[0]
        if score_TK.ndim != 2 or score_TK.shape[1] != len(self._names) + 1:
            return None
        frames, count_1 = (inputs[spec.name] for spec in self._inputs)
        share = min(max(float(count_1[0]) / frames.shape[1], 0.0), 1.0)  # the rest is padding
        return {"text": text_of_scores(score_TK, share, self._names, beam_size=1)}


class ClipReader(UsualAnswer, SoundReader):
    """Reads a recording as one clip with a class."""

    def inputs_of(self, sound_S: np.ndarray) -> Dict[str, np.ndarray]:
        """See `SoundReader.inputs_of`."""
        return clip_inputs(self._folder.signature, sound_S)


def _refuse_long(body: bytes) -> None:
    """Raises a `RequestError` if the body is no recording, or if it is too long to decode."""
    import soundfile

    fault = format_fault(body[:12])
    if fault:
        raise RequestError(400, f"the body {fault}.")
    try:
        info = soundfile.info(io.BytesIO(body))
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        raise RequestError(400, "the body is no recording that can be read.") from error
    if info.frames > MAX_SECONDS * info.samplerate or info.frames * info.channels > MAX_VALUES:
        raise RequestError(413, f"the recording is longer than {MAX_SECONDS:g} s, or has too many channels.")


def make_sound_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[SoundReader]:
    """Returns the reader for a network that recognises speech; None for others.

    Raises:
        ValueError: the signature is damaged.
    """
    values = folder.signature
    if "Transcripts" not in targets_in(values) or [len(spec.dims) for spec in inputs] != [3, 1]:
        return None
    if "audio" not in values.get("signature", {}):  # frames of images, such as lines of handwriting
        return None
    require_form(values["signature"], AudioSignature.form)
    return SoundReader(folder, AudioSignature.from_json(values["signature"]), inputs)


def make_clip_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[SoundReader]:
    """Returns the reader for a network that classifies clips; None for others.

    Raises:
        ValueError: the signature is damaged.
    """
    values = folder.signature.get("signature", {})
    if "seconds" not in values or [len(spec.dims) for spec in inputs] != [4]:
        return None
    require_form(values, ClipSignature.form)
    return ClipReader(folder, ClipSignature.from_json(values), inputs)


READERS = {Frames.name: make_sound_reader, Spectrograms.name: make_clip_reader}
"""Readers for `mxtrain.serving.readers`, by the name of a kind of samples."""
