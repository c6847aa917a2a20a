"""What enters a network that finds things is part of what was trained."""

from __future__ import annotations

import pytest
from boxed_files import NAMES, write_voc

from mxtrain.dataset.image.settings import Decoding
from mxtrain.dataset.voc import Voc
from mxtrain.errors import ConfigError
from mxtrain.model.centernet import CenterNet


class LargeInput(CenterNet):
    def input_shape(self, native):
        return (3, 300, 300)


def test_a_model_that_wants_another_size_is_answered(tmp_path):
    dataset = Voc(root=str(write_voc(tmp_path / "VOC2007")), classes=NAMES, image_size=[32, 48])
    splits = dataset.open()
    assert dataset.sign(splits, CenterNet()).shape == (3, 32, 48)
    with pytest.raises(ConfigError, match=r"of 300 x 300, and they are brought to 32 x 48.*image_size=\[300,300\]"):
        dataset.sign(splits, LargeInput())


def test_a_checkpoint_says_how_pictures_are_fitted(tmp_path):
    root = str(write_voc(tmp_path / "VOC2007"))
    trained = Voc(root=root, classes=NAMES, image_size=[32, 48], fit="pad", channels=1, window="full")
    signature = trained.sign(trained.open(), CenterNet())
    assert signature.decoding == Decoding((1, 32, 48), window="full", fit="pad")
    plain = Voc(root=root, classes=NAMES)
    restored, _ = plain.restored(signature, ["dataset.root"], "run")
    assert (restored.fit, restored.image_size, restored.window) == ("pad", [32, 48], "full")
    with pytest.raises(ConfigError, match="dataset.fit=stretch: what enters .* run says dataset.fit=pad. Leave it out"):
        plain.restored(signature, ["dataset.fit"], "run")
