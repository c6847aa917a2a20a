"""Recognises speech in WAV files with an exported network. Exported folders have a copy of this module.

    WAV -> one channel at the rate of training -> log-mel frames -> the network -> CTC -> text

Legend: S samples of sound, T frames or scores, F mel bands, K characters and the blank, which is the last class.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder
from mxtrain.speech.log_mel import FrameNumbers, StoredNumbers, log_mel, stored
from mxtrain.speech.prefix_beam import prefix_beam_search

MAX_SECONDS = 3600.0
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    return "a WAV file of any rate, 8 to 32 bits or floats"


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the row that `mxtrain predict` writes for a recording.

    Args:
        folder: with the network.
        content: content of a WAV file of 8 to 32 bits or of floats.
        name: name of the file.

    Raises:
        ValueError: it is none, or the network cannot take its length.
    """
    sound_SC, source_rate = read_wav(content, name)
    numbers = StoredNumbers.from_mapping(folder.signature["signature"]["audio"])
    sound_S = resampled(sound_SC.mean(axis=1, dtype=np.float32), source_rate, numbers.sample_rate)
    inputs, share = sound_inputs(folder.signature, sound_S, numbers, name)
    score_TK = folder.run(inputs)["output"][0]
    beam_size = folder.signature["facts"]["beam_size"]
    yield {"file": name, "text": text_of_scores(score_TK, share, folder.signature["class_names"], beam_size)}


def text_of_scores(score_TK: np.ndarray, share: float, names: Sequence[str], beam_size: int) -> str:
    """Returns the recognised text.

    Args:
        score_TK: scores of the network for one recording.
        share: share of the scores that are no padding, from 0 to 1.
        names: characters.
        beam_size: see `decode`.
    """
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
) -> Tuple[Dict[str, np.ndarray], float]:  # fmt: skip
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
    place, layout, data = 12, None, None
    while place + 8 <= len(content) and data is None:
        kind, size = content[place : place + 4], struct.unpack_from("<I", content, place + 4)[0]
        body = content[place + 8 : place + 8 + size]
        if kind == b"fmt " and len(body) >= 16:
            layout = struct.unpack_from("<HHIIHH", body)
            if layout[0] == EXTENSIBLE and len(body) >= 26:
                layout = (struct.unpack_from("<H", body, 24)[0], *layout[1:])
        elif kind == b"data":
            data = body
        place += 8 + size + size % 2
    if layout is None or data is None:
        raise ValueError(f"{name} is damaged: it lacks a format or sound")
    form, channels, rate, _, _, bits = layout
    if not 1 <= channels <= 64 or not 1000 <= rate <= 768_000:
        raise ValueError(f"{name} has {rate} samples a second and {channels} channels")
    sound = _samples(data, form, bits, name)
    sound = sound[: len(sound) // channels * channels].reshape(-1, channels)
    if not len(sound) or len(sound) > MAX_SECONDS * rate or not np.isfinite(sound).all():
        raise ValueError(f"{name} holds {len(sound) / rate:.1f} seconds of sound that cannot be used")
    return sound, rate


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
    raise ValueError(f"{name} holds sound of the kind {form} with {bits} bits; PCM and floats are read")


def resampled(sound_S: np.ndarray, source_rate: int, rate: int) -> np.ndarray:
    """Resamples sound with the polyphase filter of `scipy.signal.resample_poly` (Kaiser window, beta 5).

    Args:
        sound_S: sound.
        source_rate: its sample rate in Hz.
        rate: sample rate of the result in Hz.
    """
    common = math.gcd(source_rate, rate)
    up, down = rate // common, source_rate // common
    if up == down:
        return sound_S
    half = 10 * max(up, down)
    place_H = np.arange(-half, half + 1)
    filter_H = np.sinc(place_H / max(up, down)) * np.kaiser(2 * half + 1, 5.0)
    filter_H = filter_H * (up / filter_H.sum())
    # Sample m of the result is at position m * down of the input upsampled with up - 1 zeros between samples.
    resampled_M = np.zeros(-(-len(sound_S) * up // down), np.float32)
    taps = 2 * half // up + 1
    for begin in range(0, len(resampled_M), 1 << 16):
        middle_M1 = (np.arange(begin, min(begin + (1 << 16), len(resampled_M))) * down)[:, None]
        index_MT = -(-(middle_M1 - half) // up) + np.arange(taps)
        tap_MT = middle_M1 - index_MT * up + half
        is_inside = (index_MT >= 0) & (index_MT < len(sound_S)) & (tap_MT >= 0) & (tap_MT <= 2 * half)
        value_MT = np.where(is_inside, sound_S[np.clip(index_MT, 0, len(sound_S) - 1)], 0)
        resampled_M[begin : begin + len(middle_M1)] = (value_MT * filter_H[np.clip(tap_MT, 0, 2 * half)]).sum(axis=1)
    return resampled_M
