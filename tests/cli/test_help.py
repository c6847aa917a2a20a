"""The help of the default configuration, which is read from the files, is that of the composed one."""

from __future__ import annotations

import pytest

from mxtrain.cli import dispatch, help
from mxtrain.cli.show import help_of_configuration
from mxtrain.composing.composer import Composer
from mxtrain.config.plugins import Plugin


def test_the_help_without_a_configuration_is_that_of_the_composed_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Composer() as composer:
        expected = help_of_configuration(composer.compose([]))
    assert "task            classification*  detection  forecasting" in expected
    monkeypatch.setattr(Composer, "compose", None)
    for flag in ("--help", "-h"):
        assert dispatch.run([flag]) == 0
        assert capsys.readouterr().out == expected + "\n"
    assert dispatch.run(["--help", "model=mlp"]) != 0


def test_plug_ins_add_to_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    assert help.default_help() is not None
    monkeypatch.setattr(help, "find_plugins", lambda: (Plugin("own", "own 1"),))
    assert help.default_help() is None
