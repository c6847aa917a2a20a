"""The language of texts whose words have no spaces between them."""

from __future__ import annotations

from typing import List

import pytest

from mxtrain.data.writing import is_unspaced, language_without_spaces, split_units


@pytest.mark.parametrize(
    "texts, name, language",
    [
        (["我昨天去了北京大学。", "OK"], "", "zh"),
        (["我用 iPhone 打电话给 ノキア"], "", "ja"),  # a third is kana
        (["大学", "東京"], "ja_JP", "ja"),
        (["大学", "東京"], "jargon", "zh"),
        (["大学", "東京"], "en", "zh"),
        (["カタカナ"], "", "ja"),
        (["나는 어제"], "", "ko"),
        (["សួស្តី"], "", "km"),
        (["The city of 東京 is large and old."], "ja", ""),
        (["Straße", "1999"], "zh", ""),
        ([], "zh", ""),
        (["", "123 ..."], "", ""),
    ],
)
def test_language(texts: List[str], name: str, language: str) -> None:
    assert language_without_spaces(texts, name) == language


def test_units_are_characters_or_words() -> None:
    assert split_units("我用iPhone 14打 电话") == ["我", "用", "iPhone", "14", "打", "电", "话"]
    assert split_units("plain words here") == ["plain", "words", "here"]
    assert is_unspaced("我用 iPad 打") is False and is_unspaced("我用手机打了") and not is_unspaced("나는 어제")
