"""Defaults of classes in composed configurations."""

from mxtrain.composing.composer import Composer
from mxtrain.model.spec import Model


def test_defaults_of_a_replaced_class_are_not_added():
    with Composer() as composer:
        words = ["model=lenet", "model._target_=nets.Net", "model.hidden=3"]
        model = composer.compose(words).config["model"]
        kept = composer.compose(["model=lenet", "model.hidden=3"]).config["model"]
    assert model["_target_"] == "nets.Net" and model["hidden"] == 3
    assert set(model) == {"_target_", "hidden", *Model.model_fields}
    assert kept["channels"] == [32, 64]
