"""Signatures as checkpoints hold them, those of earlier versions included."""

from __future__ import annotations

import json

import pytest

from mxtrain.checkpoint.run_state import _problems, _unknown
from mxtrain.dataset.base import Decoding
from mxtrain.dataset.language.tokenizing.config import TokenizerConfig
from mxtrain.dataset.language.tokenizing.wordpiece import WordPiece
from mxtrain.dataset.signature import SIGNATURE_STATE, Signature
from mxtrain.dataset.speech.features import Features
from mxtrain.errors import DamagedCheckpoint

TOKENIZER = TokenizerConfig(WordPiece(("x", "y"), True), 5, 0.2)
TEXT = Signature(((5,), (5,), ()), class_names=["a", "b"], tokenizer_config=TOKENIZER)
IMAGE = Signature((1, 8, 8), [0.5], [0.25], ["a", "b"], decoding=Decoding((1, 8, 8), 0.875))
BOXES = Signature((3, 8, 8), category_ids=[1, 7], decoding=Decoding((3, 8, 8), fit="pad"))
SOUND = Signature(((32, 40), ()), class_names=["a", " "], audio=Features(num_mels=40, step_ms=20.0))
INPUT = SIGNATURE_STATE


@pytest.mark.parametrize("signature", [TEXT, IMAGE, BOXES, SOUND], ids=["text", "image", "boxes", "sound"])
def test_a_signature_comes_back_from_json(signature: Signature) -> None:
    values = json.loads(json.dumps(signature.to_json()))
    assert not [*_problems(values, INPUT, ""), *_unknown(values, INPUT, "")]
    assert Signature.from_json(values).to_json() == signature.to_json()


def test_features_that_cannot_be_computed_are_damage() -> None:
    values = json.loads(json.dumps(SOUND.to_json()))
    values["audio"]["num_mels"] = 5000
    with pytest.raises(DamagedCheckpoint, match="in its audio, .*less than or equal to 256"):
        Signature.from_json(values)


def test_a_checkpoint_of_an_earlier_version_says_reading() -> None:
    """What is now `tokenizer_config` was called `reading`."""
    values = json.loads(json.dumps(TEXT.to_json()))
    values["reading"] = values.pop("tokenizer_config")
    assert not [*_problems(values, INPUT, ""), *_unknown(values, INPUT, "")]
    assert Signature.from_json(values).tokenizer_config == TEXT.tokenizer_config
