"""Classifies clips of sound with an exported network. Exported folders have a copy of this module.

    recording -> one channel at the rate of training -> a clip -> log-mel frames -> standardised bands -> the network

Legend: T frames, F mel bands.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator

import numpy as np

from mxtrain.data.class_rows import ranked_classes
from mxtrain.data.exported_folder import ExportedFolder
from mxtrain.speech.clip_frames import clip_frames
from mxtrain.speech.exported_speech import describe_input as describe_input
from mxtrain.speech.exported_speech import examples as examples
from mxtrain.speech.exported_speech import read_sound
from mxtrain.speech.log_mel import StoredNumbers
from mxtrain.speech.resampling import resampled


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the row that `mxtrain predict` writes for a recording.

    Args:
        folder: exported folder.
        content: content of a WAV file, or of another format that libsndfile reads.
        name: name of the file.

    Raises:
        ValueError: the content is not a recording.
    """
    outputs = folder.run(inputs_of_file(folder, content, name))
    yield {"file": name, **ranked_classes(folder.signature["class_names"], outputs["probabilities"][0])}


def inputs_of_file(folder: ExportedFolder, content: bytes, name: str) -> Dict[str, np.ndarray]:
    """Returns the input of the network for a recording, (1, 1, T, F); content and name as in `read_sound`."""
    sound_S, source_rate = read_sound(content, name)
    rate = folder.signature["signature"]["audio"]["sample_rate"]
    return clip_inputs(folder.signature, resampled(sound_S, source_rate, rate))


def clip_inputs(signature: Dict[str, Any], sound_S: np.ndarray) -> Dict[str, np.ndarray]:
    """Returns the input of the network for sound at the rate of training, (1, 1, T, F).

    Args:
        signature: signature of the folder.
        sound_S: the sound.
    """
    values, (spec,) = signature["signature"], signature["inputs"]
    frames_TF = clip_frames(sound_S, StoredNumbers.from_mapping(values["audio"]), values["seconds"])
    # Frames are stored with 16 bits in training.
    frames_TF = frames_TF.astype(np.float16).astype(np.float32)
    mean_F, std_F = (np.asarray(values[name], np.float32) for name in ("mean", "std"))
    return {spec["name"]: ((frames_TF - mean_F) / std_F)[None, None].astype(spec["dtype"])}
