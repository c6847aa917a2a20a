"""Speaks symbols with durations by an exported network. Exported folders have a copy of this module.

    symbols, durations -> the network -> log-mel frames -> Griffin and Lim's algorithm -> WAV

Legend: L symbols, T frames, F mel bands.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, json_lines_of
from mxtrain.speech.aligned_rows import durations_of_row, frame_positions, frames_of_symbols, symbols_of_row
from mxtrain.speech.griffin_lim import frames_to_sound, wav_bytes
from mxtrain.speech.log_mel import StoredNumbers

READS_JSON_LINES = True
"""Files in .json may hold lines of JSON as well, besides arrays of the network."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    return (
        'lines of JSON with a text or phonemes and the duration of each symbol, such as {"text": "no", "durations_s": '
        '[0.12, 0.31]} or {"phonemes": ["N", "OW"], "durations_frames": [10, 27]}: the network does not predict '
        "durations"
    )


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns name and content of a file for the proof of an export."""
    symbols = signature["signature"]["symbols"][:3]
    row = {"phonemes": symbols, "durations_frames": list(range(2, 2 + len(symbols)))}
    return [("proof.jsonl", json.dumps(row).encode())]


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the rows that `mxtrain predict` writes for lines of JSON; `audio` holds the bytes of a WAV file.

    Args:
        folder: exported folder.
        content: lines of JSON.
        name: name of the file.

    Raises:
        ValueError: a line is invalid, or has a symbol that the network does not know.
    """
    values, signature = folder.signature["signature"], folder.signature
    numbers = StoredNumbers.from_mapping(values["audio"])
    index = {symbol: number for number, symbol in enumerate(values["symbols"])}
    for line, row in json_lines_of(content, name):
        location = f"{name}:{line}"
        if not isinstance(row, dict):
            raise ValueError(f"{location} is no object of JSON; a file has {describe_input(signature)}")
        try:
            symbols, text = symbols_of_row(row)
            durations, in_seconds = durations_of_row(row, len(symbols))
        except ValueError as error:
            raise ValueError(f"{location} {error}") from error
        unknown = [symbol for symbol in dict.fromkeys(symbols) if symbol not in index]
        if unknown:
            raise ValueError(
                f"{location} has {', '.join(map(repr, unknown[:8]))}; known symbols are "
                f"{', '.join(map(repr, values['symbols'][:60]))}"
            )
        duration_L = frames_of_symbols(durations, in_seconds, numbers)
        if not duration_L.sum():
            raise ValueError(f"{location}: its durations are less than half a frame")
        frames_TF = frames_of(folder, [index[symbol] for symbol in symbols], duration_L, location)
        sound_S = frames_to_sound(frames_TF, numbers, signature["facts"]["iterations"])
        yield {
            "file": location,
            "text": text,
            "frames": len(frames_TF),
            "seconds": round(len(frames_TF) * numbers.step / numbers.sample_rate, 3),
            "audio": wav_bytes(sound_S, numbers.sample_rate),
        }


def frames_of(folder: ExportedFolder, symbols: List[int], duration_L: np.ndarray, location: str) -> np.ndarray:
    """Returns the frames (T, F) of an utterance, as logarithms of power.

    Args:
        folder: exported folder.
        symbols: number of each symbol.
        duration_L: frames of each symbol.
        location: source location, for messages.

    Raises:
        ValueError: the network has a fixed length, and the utterance is longer.
    """
    values, total = folder.signature["signature"], int(duration_L.sum())
    arrays = [
        np.array(symbols),
        np.array(len(symbols)),
        np.repeat(np.arange(len(duration_L)), duration_L),
        frame_positions(duration_L),
    ]
    inputs = {}
    for spec, array, filler in zip(folder.signature["inputs"], arrays, (0, 0, -1, 0)):
        if array.ndim and not isinstance(spec["shape"][1], str):
            padding = spec["shape"][1] - len(array)
            if padding < 0:
                raise ValueError(f"{location} needs {len(array)}, and the network takes {spec['shape'][1]} at most")
            array = np.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1), constant_values=filler)
        inputs[spec["name"]] = array[None].astype(spec["dtype"])
    frames_TF = folder.run(inputs)["output"][0, :total].astype(np.float32)
    return frames_TF * np.asarray(values["std"], np.float32) + np.asarray(values["mean"], np.float32)
