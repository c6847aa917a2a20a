"""What the command line says when a command is interrupted, and how it ends."""

from __future__ import annotations

from typing import List

import pytest

from mxtrain.cli import data, dispatch, evaluate, train


@pytest.mark.parametrize(
    "words, module, said",
    [
        (["data", "check"], data, "interrupted before `data` came to its end; the same command begins anew"),
        (["eval", "run"], evaluate, "interrupted before `eval` came to its end; the same command begins anew"),
        (["model=mlp"], train, "interrupted before training began; nothing was lost"),
    ],
)
def test_an_interrupted_command_says_of_itself_what_was_lost(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, words: List[str], module: object, said: str
) -> None:
    def interrupt(arguments: List[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run", interrupt)
    assert dispatch.run(words) == 130
    assert capsys.readouterr().err == f"stopped: {said}\n"
