"""Questions about the documentation of NumPy and SciPy, which mxtrain needs anyway: what type has a parameter?

The context is a part of a section "Parameters", on one line; the question is the name of a parameter, and the answer
the text after its colon. The content depends on the versions of both libraries.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import zlib
from importlib import metadata
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

from mxtrain.files.cache import cached_json
from mxtrain.text.question_answering.questions import Answer, Question, Questions

VERSION = 1
"""Version of the prepared data; questions kept by another version are prepared again."""
PACKAGES = ("numpy", "scipy")
MOST_WORDS = 110
"""Maximum number of words of a context."""
SECTION = re.compile(r"^([ ]*)Parameters\n\1----------\n", re.MULTILINE)
HEADING = re.compile(r"^[^\n]+\n *-{3,} *$", re.MULTILINE)
ENTRY = re.compile(r"^(\w+) ?: ?(\S[^\n]*)$")
ContextQuestions = List[Tuple[str, List[Tuple[str, str, int]]]]
"""Contexts, each with its questions: name, answer, and first character of the answer."""


class _Entry(NamedTuple):
    name: str
    type: str
    text: str


def numpydoc_questions(val_fraction: float, test_fraction: float, seed: int) -> List[Questions]:
    """Returns the questions of the training, validation and test split. Splits share no file, and files no context."""
    parts = [Questions(), Questions(), Questions()]
    for file, contexts in _cached_contexts().items():
        position = zlib.crc32(f"{seed}:{file}".encode()) / 2**32
        part = parts[1 if position < val_fraction else 2 if position < val_fraction + test_fraction else 0]
        for context, context_questions in contexts:
            part.contexts.append(context)
            for name, answer, begin in context_questions:
                number = f"{file}:{len(part.contexts)}:{name}"
                part.questions.append(Question(number, name, len(part.contexts) - 1, (Answer(answer, begin),)))
    return parts


def pattern_answer(question: str, context: str) -> str:
    """Returns the answer of a fixed pattern, as a baseline: the text after the name and a colon, up to the likely
    beginning of a sentence."""
    match = re.search(rf"(?<!\w){re.escape(question)} ?: ?(.+?)(?= [A-Z][a-z']*\s[a-z]| \w+ : |$)", context)
    return match.group(1) if match else ""


def _cached_contexts() -> Dict[str, ContextQuestions]:
    versions = "-".join(metadata.version(package) for package in PACKAGES)
    name = f"{VERSION}-{versions}.json"
    return cached_json("numpydoc_questions", name, _read_all)


def _read_all() -> Dict[str, ContextQuestions]:
    seen: set = set()
    contexts_by_file: Dict[str, ContextQuestions] = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            content = path.read_bytes()  # lint: a file of an installed package
            if "tests" in path.parts or b"Parameters\n" not in content or not content.isascii():
                continue
            contexts = []
            for text in _docstrings(content.decode()):
                for context, context_questions in contexts_of(text):
                    if context not in seen:
                        seen.add(context)
                        contexts.append((context, context_questions))
            if contexts:
                contexts_by_file[f"{package}/{path.relative_to(root).as_posix()}"] = contexts
    return contexts_by_file


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and "Parameters\n" in value:
            yield value


def contexts_of(text: str) -> Iterator[Tuple[str, List[Tuple[str, str, int]]]]:
    """Yields the contexts in the sections "Parameters" of a text, each with its questions (name, answer, first
    character of the answer)."""
    for section in SECTION.finditer(text):
        body = text[section.end() :]
        heading = HEADING.search(body)
        entries = list(_entries(body[: heading.start()] if heading else body, len(section.group(1))))
        group: List[_Entry] = []
        for entry in [*entries, None]:
            words = sum(len(one.text.split()) for one in group)
            if group and (entry is None or words + len(entry.text.split()) > MOST_WORDS):
                yield _context_of(group)
                group = []
            if entry is not None:
                group.append(entry)


def _entries(body: str, indent: int) -> Iterator[_Entry]:
    """Yields name, type and text of each parameter that has one name and at most `MOST_WORDS` words."""
    lines: List[str] = []
    for line in [*body.split("\n"), " " * indent + "end"]:
        if line.strip() and len(line) - len(line.lstrip()) == indent:
            head = ENTRY.match(lines[0].strip()) if lines else None
            text = " ".join(" ".join(lines).split())
            if head and len(text.split()) <= MOST_WORDS:
                yield _Entry(head.group(1), " ".join(head.group(2).split()), text)
            lines = []
        if line.strip():
            lines.append(line)


def _context_of(entries: List[_Entry]) -> Tuple[str, List[Tuple[str, str, int]]]:
    context, questions = "", []
    for name, kind, text in entries:
        context += " " if context else ""
        begin = len(context) + text.index(kind, len(name))
        questions.append((name, kind, begin))
        context += text
    names = [name for name, _, _ in questions]
    return context, [one for one in questions if names.count(one[0]) == 1]
