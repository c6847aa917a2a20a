"""Lines of Python's standard library with a tag for each word, as default data.

Tags are in BIO: FUNC and CLASS where one is defined, PARAM of parameters and of arguments by name, CALL of callees,
ATTR, MODULE (with its dots), VAR; the syntax tree of the file says which. Lines are logical ones of 3 to 60 words, from
`*.py` in the top folder of CPython 3.11.7, without lines that differ from an earlier one in numbers only. Strings are
replaced by `""`.
"""

from __future__ import annotations

import zlib
from typing import List, Tuple

from mxtrain.files.bundled import read_bundled
from mxtrain.text.token_classification.conll_file import TaggedWords


def python_lines() -> List[Tuple[str, TaggedWords]]:
    """Returns the words and tags of each line, by file."""
    content = read_bundled("text/corpora/python_words.json.gz")
    tag_of = content["tags"]
    files = []
    for file, lines in content["files"].items():
        words = [words.split(" ") for words, _ in lines]
        files.append((file, TaggedWords(words, [[tag_of[tag] for tag in tags] for _, tags in lines])))
    return files


def part_of(name: str, seed: int) -> float:
    """Returns a number from 0 to 1 for a file, by which it goes to a split."""
    return zlib.crc32(f"{seed}:{name}".encode()) / 2**32
