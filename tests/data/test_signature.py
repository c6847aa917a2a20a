"""Signatures as checkpoints hold them, of each kind of samples."""

from __future__ import annotations

import json

import pytest

from mxtrain.data.signature import Signature
from mxtrain.errors import DamagedCheckpoint
from mxtrain.files.json_form import problems_of, unknown_keys
from mxtrain.speech.features import Features
from mxtrain.speech.signature import AudioSignature
from mxtrain.text.signature import TextSignature
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.wordpiece import WordPiece
from mxtrain.vision.detection.signature import BoxSignature
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.signature import ImageSignature

TOKENIZER = TokenizerConfig(WordPiece(("x", "y"), True), 5, 0.2)
TEXT = TextSignature(((5,), (5,), ()), class_names=["a", "b"], tokenizer_config=TOKENIZER)
IMAGE = ImageSignature((1, 8, 8), [0.5], [0.25], ["a", "b"], decoding=Decoding((1, 8, 8), 0.875))
BOXES = BoxSignature((3, 8, 8), category_ids=[1, 7], decoding=Decoding((3, 8, 8), fit="pad"))
SOUND = AudioSignature(((32, 40), ()), class_names=["a", " "], audio=Features(num_mels=40, step_ms=20.0))


@pytest.mark.parametrize("signature", [TEXT, IMAGE, BOXES, SOUND], ids=["text", "image", "boxes", "sound"])
def test_signature_is_restored_from_json(signature: Signature) -> None:
    values = json.loads(json.dumps(signature.to_json()))
    assert not [*problems_of(values, signature.form), *unknown_keys(values, signature.form)]
    assert type(signature).from_json(values).to_json() == signature.to_json()


def test_features_that_cannot_be_computed_are_damage() -> None:
    values = json.loads(json.dumps(SOUND.to_json()))
    values["audio"]["num_mels"] = 5000
    with pytest.raises(DamagedCheckpoint, match="in its audio, .*less than or equal to 256"):
        AudioSignature.from_json(values)
