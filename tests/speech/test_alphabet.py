"""Characters, and how many scores CTC needs for a row of them."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.speech.alphabet import Alphabet, Transcript, needed_frames, normalized


def test_texts_become_numbers_and_back() -> None:
    alphabet = Alphabet("ab ")
    assert alphabet.encode("ba b").tolist() == [1, 0, 2, 1]
    assert alphabet.unknown("axbya") == ["x", "y"]
    assert alphabet.decode(np.array([-1, 1, -1, 0, 2.0])) == "ba "
    assert Transcript("a", alphabet).read(np.array([1, 1])) == "bb"


def test_transcripts_are_normalised() -> None:
    assert normalized("  One\tTWO \n", "lower") == "one two"
    assert normalized("e\u0301", "upper") == "\u00c9"
    assert normalized("Ab", "keep") == "Ab"


@pytest.mark.parametrize(
    "text, left",
    [
        ("Hello, world!", "hello world"),
        ("\u201cDon\u2019t,\u201d he said\u2026", "don't he said"),
        ("well-known \u2014 'tis the dogs' day", "well known tis the dogs day"),
        ("5 % of R&D (a_b)", "5 % of r&d a b"),
        ("o'clock 'n' rock", "o'clock n rock"),
        ("\u00bfqu\u00e9?", "qu\u00e9"),
        ("...", ""),
        ("a+b $3", "a+b $3"),
    ],
)
def test_punctuation_is_taken_out_on_request(text: str, left: str) -> None:
    assert normalized(text, "lower", "remove") == left
    assert normalized("Hello, world!", "lower") == "hello, world!"


def test_equal_characters_need_a_blank() -> None:
    texts = ["", "a", "aa", "aab", "abba", "aaa", "b"]
    labels = [Alphabet("ab").encode(text) for text in texts]
    begin = np.concatenate([[0], np.cumsum([len(label) for label in labels])])
    found = needed_frames(np.concatenate(labels), begin)
    assert found.tolist() == [0, 1, 3, 4, 5, 5, 1]
    assert needed_frames(np.zeros(0, np.int32), np.zeros(3, np.int64)).tolist() == [0, 0]
