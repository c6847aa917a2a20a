"""Documentation of CPython 3.11.7 as default data: the docstrings of its standard library, and the topics of `help()`.

Docstrings are indented as `help()` shows them, and each is kept in the first file that has it. Topics are parts of the
language reference.
"""

from __future__ import annotations

from typing import Dict, List

from mxtrain.files.bundled import read_bundled

_NAME = "text/corpora/python_documentation.json.gz"


def documents() -> Dict[str, List[str]]:
    """Returns the docstrings by source file, and the topics. No two documents share a text."""
    content = read_bundled(_NAME)
    texts_by_source: Dict[str, List[str]] = dict(content["docstrings"])
    seen = set()
    for topic, text in content["topics"].items():
        text = text.strip("\n") + "\n"
        if text not in seen:
            texts_by_source[f"help({topic!r})"] = [text]
        seen.add(text)
    return texts_by_source


def topics() -> Dict[str, str]:
    """Returns the text of each topic, in the order of their names."""
    return dict(read_bundled(_NAME)["topics"])
