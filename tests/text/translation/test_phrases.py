"""Phrases in two languages: true, different, and the same each time."""

from __future__ import annotations

import pydantic
import pytest

from mxtrain.errors import DataError
from mxtrain.text.translation import phrases as module
from mxtrain.text.translation.number_and_date_phrases import NumberAndDatePhrases
from mxtrain.text.translation.phrases import LANGUAGES, phrases

pytestmark = pytest.mark.usefixtures("own_cache")


def test_phrases_are_translations() -> None:
    """A few of each kind, by hand."""
    made = {name: make("en") for name, make in module.MAKERS.items()}
    found = {name: make("de") for name, make in module.MAKERS.items()}
    cases = [
        ("date", [0, 3, 0, 0], "Monday, January 1, 1900", "Montag, 1. Januar 1900"),
        ("date", [31, 1, 0, 0], "Feb 1, 1900", "01.02.1900"),
        ("date", [125, 1, 0, 0], "", "06.05.1900"),  # May 6, 1900 is also the long form
        ("number", [21, 5, 0, 0], "twenty-one", "einundzwanzig"),
        ("unit", [345, 2, 6, 1], "345 hectares", "345 Hektar"),
        ("unit", [31, 2, 2, 0], "thirty-two miles", "zweiunddreißig Meilen"),
        ("money", [4200, 3, 1, 0], "four thousand, two hundred US dollars", "viertausendzweihundert US-Dollar"),
        ("relative", [3, 4, 1, 0], "in 5 days", "in 5 Tagen"),
        ("relative", [2, 0, 0, 0], "1 hour ago", "vor 1 Stunde"),
    ]
    for kind, drawn, source, target in cases:
        assert (made[kind](list(drawn)), found[kind](list(drawn))) == (source, target)


@pytest.mark.parametrize("language", [one for one in LANGUAGES if one != "en"])
def test_phrases_have_distinct_texts(language: str) -> None:
    found = phrases("en", language, 300, 0)
    assert len(found) == 300 and found == phrases("en", language, 300, 0) != phrases("en", language, 300, 1)
    for side in zip(*found):
        assert len(set(side)) == 300 and all(side)


def test_held_out_phrases_are_not_trained_on() -> None:
    splits = NumberAndDatePhrases(num_train=200, num_val=30, num_test=20).open()
    assert splits.test is not None
    parts = [part.pairs for part in (splits.train, splits.val, splits.test)]  # type: ignore[attr-defined]
    assert [len(part) for part in parts] == [200, 30, 20]
    texts = [text for part in parts for pair in part for text in pair]
    assert len(set(zip(texts[::2], texts[1::2]))) == 250
    for side in (0, 1):
        assert len({pair[side] for part in parts for pair in part}) == 250
    assert NumberAndDatePhrases(num_train=200, num_test=0).open().test is None


def test_the_languages_differ_and_the_libraries_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pydantic.ValidationError, match="source=de and target=de must differ"):
        NumberAndDatePhrases(source="de")
    monkeypatch.setitem(__import__("sys").modules, "num2words", None)
    with pytest.raises(DataError, match="needs the package num2words .*pip install 'num2words"):
        phrases("en", "de", 5, 3)
