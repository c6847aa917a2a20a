"""Parses annotation files of PASCAL VOC: XML with a box for each object in an image.

Encodings that expat does not know are decoded by Python first.

Parts of objects (a person's head) are elements with a name and a box inside an object, so the meaning of an element
depends on its parents.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_number
from mxtrain.files.xml_events import MAX_DEPTH, XmlError, XmlReader

EDGES = ("xmin", "ymin", "xmax", "ymax")
_READ = {
    ("size", "width"),
    ("size", "height"),
    ("object", "name"),
    ("object", "difficult"),
    *(("object", "bndbox", edge) for edge in EDGES),
}
"""Elements below the root whose text is read."""
XML_SPACE = " \t\r\n"
_DECLARED = re.compile(rb"""\A\s*<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_EXPATS_OWN = {"utf-8": "utf-8", "iso8859-1": "iso-8859-1", "ascii": "us-ascii"}
"""Python's name of an encoding -> expat's name. Expat knows no other names, such as utf8."""
ENCODINGS = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "gb18030": "gb18030",
    "hz": "hz",
    "big5": "cp950",
    "cp950": "cp950",
    "big5hkscs": "big5hkscs",
    "shift_jis": "cp932",
    "cp932": "cp932",
    "euc_jp": "euc_jp",
    "iso2022_jp": "iso2022_jp",
    "euc_kr": "cp949",
    "cp949": "cp949",
    "johab": "johab",
    "koi8-r": "koi8-r",
    "koi8-u": "koi8-u",
    **{f"cp{number}": f"cp{number}" for number in (*range(1250, 1259), 437, 850, 866, 874)},
    **{f"iso8859-{number}": f"iso8859-{number}" for number in (*range(2, 12), *range(13, 17))},
}
"""Python's name of a declared encoding -> codec that decodes it, which may be a superset: tools declare GB2312 for
GBK."""


@dataclass
class VocObject:
    """An object in an annotation. Coordinates are as in the file: the first pixel is 1, and the last one is inside the
    box.

    Attributes:
        line: line on which it begins.
        number: index of the `<object>` in the file, from 0. An `<object>` with several boxes is read as several objects
            with the same number.
        texts: name of an element -> its text, including the edges of the box.
    """

    line: int
    number: int
    texts: Dict[str, str] = field(default_factory=dict)


class BadAnnotation(DataError):
    """A file is not a valid annotation.

    Args:
        line: line of the problem.
        fact: the problem, as the end of a sentence.
    """

    def __init__(self, line: int, fact: str) -> None:
        super().__init__(fact)
        self.line, self.fact = line, fact


def decode_declared(content: bytes) -> Tuple[bytes, Optional[str]]:
    """Converts a document to UTF-8 if expat does not know its encoding.

    Returns:
        The document, and the encoding that the parser must assume instead of the declared one; None if the parser
        should read the declaration.

    Raises:
        BadAnnotation: the declared encoding is unknown, or the document is not valid in it.
    """
    declared = _DECLARED.match(content)
    if declared is None:
        return content, None
    name = declared[1].decode("ascii")
    try:
        codec = codecs.lookup(name).name
    except LookupError:
        codec = ""
    if codec in _EXPATS_OWN:
        return content, _EXPATS_OWN[codec]
    if codec.startswith("utf-16"):
        return content, None  # expat refuses it if the bytes are in another encoding
    if codec not in ENCODINGS:
        raise BadAnnotation(
            1, f"declares the encoding '{name}', which is not read. Convert it to UTF-8, and declare encoding=\"UTF-8\""
        )
    try:
        return content.decode(ENCODINGS[codec]).encode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadAnnotation(
            line, f"declares the encoding {name}, of which the byte 0x{content[error.start]:02x} on line {line} is none"
        ) from error


def parse_annotation(content: bytes) -> Tuple[Optional[Tuple[float, float]], List[VocObject]]:
    """Parses an annotation file. Returns the annotated (width, height) of the image, None if unknown, and the objects
    in it.

    Raises:
        BadAnnotation: the file is not XML, declares a document type, or its root is not an annotation.
    """
    return _AnnotationReader().read(content)


class _AnnotationReader(XmlReader):
    """Collects the size and the objects of an annotation from the events of the parser."""

    def __init__(self) -> None:
        super().__init__()
        self._path: List[str] = []
        self._size: Dict[str, str] = {}
        self._objects: List[VocObject] = []
        self._boxes: List[Dict[str, str]] = []
        """Edges in each `<bndbox>` of the current object, by name."""

    def read(self, content: bytes) -> Tuple[Optional[Tuple[float, float]], List[VocObject]]:
        decoded, encoding = decode_declared(content)
        try:
            self.parse(decoded, encoding)
        except XmlError as error:
            raise BadAnnotation(error.line, error.fact) from error
        return self._annotated_size(), self._objects

    def _annotated_size(self) -> Optional[Tuple[float, float]]:
        width, height = (parse_number(self._size.get(side, "")) or 0.0 for side in ("width", "height"))
        return (width, height) if 0 < width < 1e6 and 0 < height < 1e6 else None  # many converters write 0

    def start(self, name: str, values: Dict[str, str]) -> None:
        if not self._path and name != "annotation":
            raise BadAnnotation(self.line, f"is no annotation: its root is <{name[:40]}>")
        self._path.append(name)
        if len(self._path) > MAX_DEPTH:
            raise BadAnnotation(self.line, f"has more than {MAX_DEPTH} elements in each other")
        if self._path[1:] == ["object"]:
            number = self._objects[-1].number + 1 if self._objects else 0
            self._objects.append(VocObject(self.line, number))
            self._boxes = []
        elif self._path[1:] == ["object", "bndbox"]:
            self._boxes.append({})
        self.text.clear()

    def end(self, name: str) -> None:
        # Elements are known by their path, because parts of objects have names and boxes of the same elements.
        below = tuple(self._path[1:])
        if below in _READ:
            self._keep(below, "".join(self.text).strip(XML_SPACE))
        elif below == ("object",):
            self._end_object()
        self._path.pop()
        self.text.clear()

    def _keep(self, below: Tuple[str, ...], text: str) -> None:
        """Stores the text of an element.

        Raises:
            BadAnnotation: the element occurs twice with different texts.
        """
        if below[0] == "size":
            texts = self._size
        else:
            texts = self._objects[-1].texts if len(below) == 2 else self._boxes[-1]
        if texts.setdefault(below[-1], text) != text:
            line, values = self.line, f"{texts[below[-1]]!r:.40} and {text!r:.40}"
            raise BadAnnotation(line, f"has two <{below[-1]}> in one <{below[-2]}>, {values} (line {line})")

    def _end_object(self) -> None:
        """Adds the edges of the boxes to the current object. Each further box becomes an object with the same other
        texts."""
        first = self._objects[-1]
        others = [VocObject(first.line, first.number, {**first.texts, **edges}) for edges in self._boxes[1:]]
        first.texts.update(self._boxes[0] if self._boxes else {})
        self._objects += others
