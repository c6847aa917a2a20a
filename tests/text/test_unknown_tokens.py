"""Unknown tokens are reported with their share."""

from __future__ import annotations

import pytest

from mxtrain.text import signature
from mxtrain.text.signature import unknown_sentences
from mxtrain.text.tokenizing.plain import Words

WORDS = Words(["<unk>", "a", "film", "to"], True)


def test_share_and_examples() -> None:
    texts = ["A film to remember", "a a a", "to forget or remember", "to sleep"]
    assert unknown_sentences(WORDS, texts) == [
        "0.385 of the tokens (5 of 13) are unknown from training, such as those of 'remember', 'forget', 'or'. All "
        "unknown tokens enter the network alike."
    ]
    assert unknown_sentences(WORDS, ["a film", "to"]) == [] == unknown_sentences(WORDS, [])


def test_only_the_first_texts_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "MAX_TEXTS", 1)
    assert unknown_sentences(WORDS, ["a film", "new"]) == []
    (sentence,) = unknown_sentences(WORDS, ["new film", "new"])
    assert sentence.startswith("0.5 of the tokens (1 of 2)")
