"""Signatures of exported folders from which videos are served."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, Dict

import pytest

from mxtrain.vision.served import MAX_SIDE, VideoBodyReader, make_video_reader

SIGNATURE: Dict[str, Any] = {
    "class_names": ["run", "walk"],
    "facts": {"frame_step": 2},
    "inputs": [{"name": "data", "dtype": "float32"}],
    "signature": {
        "shape": [9, 16, 20],
        "mean": [0.5] * 9,
        "decoding": {"shape": [9, 18, 22], "central_crop": 0.9},
    },
}


def changed(path: str, value: Any) -> Dict[str, Any]:
    """Returns a signature with another value."""
    signature = copy.deepcopy(SIGNATURE)
    *parents, name = path.split(".")
    place = signature
    for parent in parents:
        place = place[parent]
    place[name] = value
    return signature


@pytest.mark.parametrize(
    "path, value, said",
    [
        ("signature.shape", [9, 16], "the shape of videos is"),
        ("signature.shape", [9, 16, MAX_SIDE + 1], "the shape of videos is"),
        ("signature.shape", [9, 0, 20], "the shape of videos is"),
        ("signature.decoding.shape", [9, 18, 0], "the shape of videos is"),
        ("signature.decoding.shape", [6, 18, 22], "the decoding of videos is .* for 9 channels"),
        ("signature.decoding.central_crop", 0, "the decoding of videos is"),
        ("signature.decoding.central_crop", 1.5, "the decoding of videos is"),
        ("facts.frame_step", 0, "the distance of frames is 0"),
    ],
)
def test_damaged_signatures_are_refused(path: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        VideoBodyReader(changed(path, value), None)


def test_channels_are_those_of_whole_frames() -> None:
    signature = changed("signature.shape", [8, 16, 20])
    signature["signature"]["decoding"]["shape"] = [8, 18, 22]
    with pytest.raises(ValueError, match="the decoding of videos is .* for 8 channels"):
        VideoBodyReader(signature, None)


@pytest.mark.parametrize("step", [None, 1, 2])
def test_distances_of_frames_are_read(step: Any) -> None:
    assert VideoBodyReader(changed("facts.frame_step", step), None).kind == "video"


def test_folders_without_a_distance_of_frames_take_arrays() -> None:
    def make(signature: Dict[str, Any], inputs: Any) -> Any:
        folder: Any = SimpleNamespace(signature=signature)
        return make_video_reader(folder, inputs)

    assert make(SIGNATURE, [None]) is not None
    assert make(SIGNATURE, [None, None]) is None
    assert make(changed("facts", {}), [None]) is None
