"""Lines of Python's standard library with a tag for each word: what `ast` says a name is. Always there, no download.

What it holds differs between versions of Python.
"""

from __future__ import annotations

import ast
import io
import platform
import sysconfig
import tokenize
import zlib
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

from mxtrain.files.cache import cached_json
from mxtrain.text.token_classification.conll_file import TaggedWords

VERSION = 1
"""Version of the prepared data; lines kept by another version are prepared again."""
SHORTEST, LONGEST = 3, 60
"""Words of a line that counts."""
MOST_BYTES = 160_000
"""Size of the largest file that is read: larger ones are tables."""
SKIPPED = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
Place = Tuple[int, int]
Line = Tuple[List[str], List[str]]


def python_lines() -> List[Tuple[str, TaggedWords]]:
    """Returns the logical lines of each file as words and tags, without lines that differ from an earlier one in
    numbers only."""
    name = f"{VERSION}-{platform.python_version()}.json"
    files = cached_json("python_words", name, lambda: _read_all(Path(sysconfig.get_paths()["stdlib"])))
    return [(file, TaggedWords(words, tags)) for file, words, tags in files]


def part_of(name: str, seed: int) -> float:
    """Returns a number from 0 to 1 for a file, by which it goes to a split."""
    return zlib.crc32(f"{seed}:{name}".encode()) / 2**32


def _read_all(folder: Path) -> List[Tuple[str, List[List[str]], List[List[str]]]]:
    seen: Set[Tuple[str, ...]] = set()
    file_lines = []
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()  # lint: a file of Python
        # In bytes and characters alike: `ast` counts the first, `tokenize` the second.
        if not content.isascii() or len(content) > MOST_BYTES:
            continue
        lines = []
        for words, tags in tagged_lines(content.decode()):
            key = tuple("0" if word[0].isdigit() else word for word in words)  # tables repeat a line with other numbers
            if key not in seen:
                seen.add(key)
                lines.append((words, tags))
        if lines:
            file_lines.append((path.name, [words for words, _ in lines], [tags for _, tags in lines]))
    return file_lines


def tagged_lines(source: str) -> List[Line]:
    """Returns the logical lines of a program as words and their tags (BIO): FUNC and CLASS where one is defined, PARAM
    of parameters and of arguments by name, CALL of callees, ATTR, MODULE (with its dots), VAR."""
    type_at = _types(ast.parse(source))
    return [_tagged(line, type_at) for line in _logical_lines(source) if SHORTEST <= len(line) <= LONGEST]


def _types(tree: ast.AST) -> Dict[Place, str]:
    """Returns the kind of each name that `ast` identifies, by place."""
    kinds: Dict[Place, str] = {}
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.JoinedStr):
            continue  # places inside are not those in the file
        todo.extend(ast.iter_child_nodes(node))
        if isinstance(node, (ast.arg, ast.keyword)) and getattr(node, "arg", None):
            kinds[node.lineno, node.col_offset] = "PARAM"
        elif isinstance(node, ast.Name):
            kinds.setdefault((node.lineno, node.col_offset), "VAR")
        elif isinstance(node, ast.Attribute):
            kinds.setdefault(_end_of(node), "ATTR")
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                kinds[node.func.lineno, node.func.col_offset] = "CALL"
            elif isinstance(node.func, ast.Attribute):
                kinds[_end_of(node.func)] = "CALL"
    return kinds


def _end_of(node: ast.Attribute) -> Place:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset - len(node.attr)


def _logical_lines(source: str) -> Iterator[List[tokenize.TokenInfo]]:
    line: List[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            yield line
            line = []
        elif token.type not in SKIPPED:
            line.append(token)


def _tagged(line: List[tokenize.TokenInfo], type_at: Dict[Place, str]) -> Line:
    words = ['""' if token.type == tokenize.STRING else token.string for token in line]
    is_name = [token.type == tokenize.NAME for token in line]
    tags = [
        f"B-{type_at[token.start]}" if token.start in type_at and name else "O" for token, name in zip(line, is_name)
    ]
    for place, word in enumerate(words[:-1]):
        if word in ("def", "class") and is_name[place + 1]:
            tags[place + 1] = "B-FUNC" if word == "def" else "B-CLASS"
    if words[0] in ("import", "from"):
        _tag_import(words, is_name, tags)
    return words, tags


def _tag_import(words: List[str], is_name: List[bool], tags: List[str]) -> None:
    """Tags an import: each module, including its dots, is one entity; other imported names are variables."""
    is_module, is_inside = True, False
    for place in range(1, len(words)):
        word = words[place]
        if word in ("import", "as", ","):
            is_module, is_inside = word == "," and words[0] == "import", False
        elif is_name[place] or (word.strip(".") == "" and is_module):
            if is_module:
                tags[place] = "I-MODULE" if is_inside else "B-MODULE"
                is_inside = True
            else:
                tags[place] = "B-VAR"
