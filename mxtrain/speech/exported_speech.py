"""Recognises speech in recordings with an exported network. Exported folders have a copy of this module.

    recording -> one channel at the rate of training -> log-mel frames -> the network -> CTC -> text

Legend: S samples of sound, T frames or scores, F mel bands, K characters and the blank, which is the last class.
"""

from __future__ import annotations

import io
import math
import struct
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder
from mxtrain.speech.log_mel import FrameNumbers, StoredNumbers, log_mel, stored
from mxtrain.speech.prefix_beam import prefix_beam_search
from mxtrain.speech.resampling import resampled
from mxtrain.speech.sound_checks import problem_of_length, problem_of_missing, problem_of_sound
from mxtrain.speech.sound_formats import ENDINGS as ENDINGS
from mxtrain.speech.sound_formats import MAX_CHANNELS, MAX_SECONDS, RATES, format_fault

PCM, FLOAT, A_LAW, MU_LAW, EXTENSIBLE = 1, 3, 6, 7, 0xFFFE


class OtherCoding(ValueError):
    """The encoding of a WAV file is not supported without libsndfile."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    return (
        "a WAV file of any rate, of 8 to 32 bits, floats, A-law or mu-law; with the package soundfile also FLAC, "
        "Ogg, MP3, AIFF and others"
    )


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the row that `mxtrain predict` writes for a recording.

    Args:
        folder: with the network.
        content: content of a WAV file, or of another format that libsndfile reads.
        name: name of the file.

    Raises:
        ValueError: the content is not a recording, or is too long for the network.
    """
    inputs, share = _inputs_of(folder.signature, content, name)
    score_TK = folder.run(inputs)["output"][0]
    beam_size = folder.signature["facts"]["beam_size"]
    yield {"file": name, "text": text_of_scores(score_TK, share, folder.signature["class_names"], beam_size)}


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns name and content of a recording for the proof of an export: half a second at another rate than that of
    the network, with a loud tone beside silence."""
    rate = 11025
    sound_S = np.sin(np.cumsum(np.linspace(0.05, 1.5, rate // 2))) * np.linspace(0, 0.9, rate // 2)
    data = (sound_S * 32767).astype("<i2").tobytes()
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        36 + len(data),
        b"WAVE",
        b"fmt ",
        16,
        PCM,
        1,
        rate,
        2 * rate,
        2,
        16,
        b"data",
        len(data),
    )
    return [("proof.wav", head + data)]


def inputs_of_file(folder: ExportedFolder, content: bytes, name: str) -> Dict[str, np.ndarray]:
    """Returns the inputs of the network for a recording, (1, ...) each; content and name as in `read_sound`."""
    return _inputs_of(folder.signature, content, name)[0]


def _inputs_of(signature: Dict[str, Any], content: bytes, name: str) -> Tuple[Dict[str, np.ndarray], float]:
    sound_S, source_rate = read_sound(content, name)
    numbers = StoredNumbers.from_mapping(signature["signature"]["audio"])
    return sound_inputs(signature, resampled(sound_S, source_rate, numbers.sample_rate), numbers, name)


def text_of_scores(score_TK: np.ndarray, share: float, names: Sequence[str], beam_size: int) -> str:
    """Returns the recognised text.

    Args:
        score_TK: scores of the network for one recording.
        share: share of the scores that are no padding, from 0 to 1.
        names: characters.
        beam_size: see `decode`.
    """
    # round, because ceil would make one score more of a product such as 12.0000001.
    score_TK = score_TK[: math.ceil(round(len(score_TK) * share, 6))].astype(np.float32)
    return "".join(names[k] for k in decode(score_TK, beam_size))


def decode(score_TK: np.ndarray, width: int) -> List[int]:
    """Returns the characters of scores: of the most probable alignment if the width is 1, else by prefix beam
    search."""
    if width > 1:
        shifted_TK = score_TK - score_TK.max(axis=1, keepdims=True)
        log_p_TK = shifted_TK - np.log(np.exp(shifted_TK).sum(axis=1, keepdims=True))
        return prefix_beam_search(log_p_TK, width)[0].characters
    best_T, blank = score_TK.argmax(axis=1), score_TK.shape[1] - 1
    is_new_T = (best_T != np.append(blank, best_T[:-1])) & (best_T != blank)
    return [int(k) for k in best_T[is_new_T]]


def sound_inputs(
    signature: Dict[str, Any], sound_S: np.ndarray, numbers: FrameNumbers, name: str
) -> Tuple[Dict[str, np.ndarray], float]:
    """Returns the inputs for a recording, padded if the exported network has a fixed length, and the share of frames
    that are no padding.

    Args:
        signature: signature of the folder.
        sound_S: sound at the rate of the features.
        numbers: settings of the frames.
        name: name of the recording, for messages.

    Raises:
        ValueError: the network has a fixed length, and the recording is longer.
    """
    frames_TF = stored(log_mel(sound_S, numbers)).astype(np.float32)
    inputs, share = {}, 1.0
    for spec in signature["inputs"]:
        if len(spec["shape"]) == 3:
            fixed_length = spec["shape"][1]
            array_1TF = frames_TF[None]
            if not isinstance(fixed_length, str):
                share = len(frames_TF) / fixed_length
                if len(frames_TF) > fixed_length:
                    raise ValueError(f"{name} has {len(frames_TF)} frames, and the network takes {fixed_length}")
                array_1TF = np.pad(array_1TF, ((0, 0), (0, fixed_length - len(frames_TF)), (0, 0)))
            inputs[spec["name"]] = array_1TF.astype(spec["dtype"])
        else:
            inputs[spec["name"]] = np.array([len(frames_TF)], spec["dtype"])
    return inputs, share


def read_sound(content: bytes, name: str) -> Tuple[np.ndarray, int]:
    """Decodes a recording, and refuses what `mxtrain predict` refuses.

    Args:
        content: content of the file.
        name: name of the file, for messages.

    Returns:
        The mean of the channels (S,), float32 from -1 to 1, and the sample rate in Hz.

    Raises:
        ValueError: the file cannot be decoded, or is cut or silent.
        ImportError: soundfile is not installed, and the file is no WAV file.
    """
    problem = problem_of_length(lambda position, count: content[position : position + count], len(content))
    if problem is None:
        sound_SC, rate, num_missing = _read(content, name)
        sound_S = sound_SC.mean(axis=1, dtype=np.float32)
        problem = problem_of_missing(num_missing, rate) or problem_of_sound(sound_SC, sound_S)
    if problem is not None:
        raise ValueError(f"{name} {problem.fact.rstrip('.')}")
    return sound_S, rate


def _read(content: bytes, name: str) -> Tuple[np.ndarray, int, int]:
    """Returns the sound of all channels, the rate, and the number of missing samples."""
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        try:
            return (*read_wav(content, name), 0)
        except OtherCoding:
            return _decoded(content, name)
    return _decoded(content, name)


def _decoded(content: bytes, name: str) -> Tuple[np.ndarray, int, int]:
    """Decodes other formats and codings with libsndfile; returns as `_read`."""
    fault = format_fault(content[:12])
    if fault:
        raise ValueError(f"{name} {fault}")
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(content)) as sound:
            _require_layout(sound.samplerate, sound.channels, sound.frames, name)
            if sound.seekable():  # as `read_recording`, for the last bits of MP3 files
                sound.seek(0)
            # Codings without seeking, such as GSM 6.10, are read only with a number of samples.
            sound_SC = sound.read(sound.frames, dtype="float32", always_2d=True)
            return sound_SC, sound.samplerate, sound.frames - len(sound_SC)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise ValueError(f"{name} is no recording that can be read: {error}") from error


def _require_layout(rate: int, channels: int, samples: int, name: str) -> None:
    """Raises a `ValueError` for layouts that training refuses."""
    if not RATES[0] <= rate <= RATES[1] or not 1 <= channels <= MAX_CHANNELS:
        raise ValueError(f"{name} has {rate} samples a second and {channels} channels")
    if samples > MAX_SECONDS * rate:
        raise ValueError(
            f"{name} is {samples / rate:,.0f} seconds long; at most {MAX_SECONDS:,.0f} are read as one utterance"
        )


def read_wav(content: bytes, name: str) -> Tuple[np.ndarray, int]:
    """Decodes a WAV file.

    Args:
        content: content of the file.
        name: name of the file, for messages.

    Returns:
        Sound (S, channels), float32 from -1 to 1, and the sample rate in Hz.

    Raises:
        ValueError: the file cannot be decoded.
    """
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise ValueError(f"{name} is no WAV file")
    position, layout, data = 12, None, None
    while position + 8 <= len(content) and data is None:
        kind, size = content[position : position + 4], struct.unpack_from("<I", content, position + 4)[0]
        body = content[position + 8 : position + 8 + size]
        if kind == b"fmt " and len(body) >= 16:
            layout = struct.unpack_from("<HHIIHH", body)
            if layout[0] == EXTENSIBLE and len(body) >= 26:
                layout = (struct.unpack_from("<H", body, 24)[0], *layout[1:])
        elif kind == b"data":
            data = body
        # Chunks of RIFF begin at even places.
        position += 8 + size + size % 2
    if layout is None or data is None:
        raise ValueError(f"{name} is damaged: it lacks a format or sound")
    form, channels, rate, _, _, bits = layout
    _require_layout(rate, channels, len(data) * 8 // max(bits * channels, 1), name)
    sound = _samples(data, form, bits, name)
    return sound[: len(sound) // channels * channels].reshape(-1, channels), rate


def _samples(data: bytes, form: int, bits: int, name: str) -> np.ndarray:
    width = bits // 8
    data = data[: len(data) // max(width, 1) * max(width, 1)]
    if form == FLOAT and bits in (32, 64):
        return np.frombuffer(data, f"<f{width}").astype(np.float32)
    if form == PCM and bits == 8:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if form == PCM and bits in (16, 32):
        return (np.frombuffer(data, f"<i{width}") / 2.0 ** (bits - 1)).astype(np.float32)
    if form == PCM and bits == 24:
        bytes_S3 = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32)
        value_S = bytes_S3[:, 0] | bytes_S3[:, 1] << 8 | bytes_S3[:, 2] << 16
        return (np.where(value_S >= 1 << 23, value_S - (1 << 24), value_S) / 2.0**23).astype(np.float32)
    if form in (A_LAW, MU_LAW) and bits == 8:
        return (_a_law() if form == A_LAW else _mu_law())[np.frombuffer(data, np.uint8)]
    raise OtherCoding(f"{name} holds sound of the kind {form} with {bits} bits; PCM, floats, A-law and mu-law are read")


def _a_law() -> np.ndarray:
    """Returns the sample of each byte in A-law, (256,). Source: ITU-T G.711."""
    code = np.arange(256) ^ 0x55
    exponent, mantissa = code >> 4 & 7, (code & 15) << 4
    value = np.where(exponent == 0, mantissa + 8, (mantissa + 264) << np.maximum(exponent - 1, 0))
    return (np.where(code & 128, value, -value) / 2.0**15).astype(np.float32)


def _mu_law() -> np.ndarray:
    """Returns the sample of each byte in mu-law, (256,). Source: ITU-T G.711."""
    code = ~np.arange(256) & 255
    value = ((((code & 15) << 3) + 132) << (code >> 4 & 7)) - 132
    return (np.where(code & 128, -value, value) / 2.0**15).astype(np.float32)
