"""Messages of Hydra, rephrased."""

from __future__ import annotations

from mxtrain.composing.hydra_errors import reasons_of


def test_the_reasons_of_an_error_are_one_line() -> None:
    error = RuntimeError("Could not override 'x'.\nTo append to your config use +x=1")
    error.__cause__ = ValueError("Key 'x' is not in struct\n    full_key: x\n    object_type=dict")
    assert reasons_of(error) == "Could not override 'x': Key 'x' is not in struct"
    assert reasons_of(KeyError()) == "KeyError"
