"""Hydra reads quoted values back unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from mxtrain.config.override_text import expand_home, quote, quote_pairs, written

TEXTS = ["/a/b", "a b", r"a\b", "a\\", "it's", 'x"y', r"a\'b", r"a\"b", "a,b=c", " lead", "[1]", "1e5", "null"]


@pytest.mark.parametrize("text", TEXTS)
def test_quoted_text_is_read_back_by_hydra(text):
    value = OverridesParser.create().parse_override(f"key={quote(text)}").value()
    assert str(value) == text and isinstance(getattr(value, "text", value), str)


def test_tilde_is_the_home_folder_as_in_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expand_home("dataset.root=~/data") == "dataset.root=/home/me/data"
    assert expand_home("dataset.train=[~/a,b~/c,~/d]") == "dataset.train=[/home/me/a,b~/c,/home/me/d]"
    assert expand_home("a='x,~/y'") == "a='x,~/y'" and expand_home("~a") == "~a"


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "null"),
        (True, "true"),
        (0.1, "0.1"),
        (np.float32(0.25), "0.25"),
        ("a b", '"a b"'),
        ([1, "x", (2.0, None)], '[1,"x",[2.0,null]]'),
        ({"a": 1, "b": [False]}, "{a:1,b:[false]}"),
    ],
)
def test_values_are_written_in_the_grammar_of_hydra(value: object, text: str) -> None:
    assert written(value) == text


def test_pairs_in_a_list_need_no_quotes() -> None:
    assert quote_pairs("a=[b=c, d,e=1:2]") == 'a=["b=c",d,"e=1:2"]'
    for text in ("a=[b,c]", "a=b", 'a=["b=c"]', "a=[[b=c]]", "a=[{b:c=d}]", "a=[f(b=c)]"):
        assert quote_pairs(text) == text
