"""What is quoted here, Hydra reads back as it was."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from mxtrain.override_text import quote

TEXTS = ["/a/b", "a b", r"a\b", "a\\", "it's", 'x"y', r"a\'b", r"a\"b", "a,b=c", " lead", "[1]", "1e5", "null"]


@pytest.mark.parametrize("text", TEXTS)
def test_hydra_reads_back_what_was_quoted(text):
    value = OverridesParser.create().parse_override(f"key={quote(text)}").value()
    assert str(value) == text and isinstance(getattr(value, "text", value), str)
