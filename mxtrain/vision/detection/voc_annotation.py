"""Reads an annotation of PASCAL VOC's: XML with a box for each object in an image.

XML of a stranger's can grow without end by entities, or name other files. So a document type, in which both are
declared, is refused. An encoding that expat does not know is decoded by Python first.

Parts of objects (a person's head) have names and boxes in the same form inside an object: the meaning of an element
depends on its parents.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple
from xml.parsers import expat

from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_number

EDGES = ("xmin", "ymin", "xmax", "ymax")
_READ = {
    ("size", "width"), ("size", "height"), ("object", "name"), ("object", "difficult"),
    *(("object", "bndbox", edge) for edge in EDGES),
}  # fmt: skip
"""Elements below the root whose text is read."""
XML_SPACE = " \t\r\n"
_DEEPEST = 64
_DECLARED = re.compile(rb"""\A\s*<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_EXPATS_OWN = {"utf-8": "utf-8", "iso8859-1": "iso-8859-1", "ascii": "us-ascii"}
"""Encoding, by its name in Python -> its name in expat, which does not know others, such as utf8."""
ENCODINGS = {
    "gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "hz": "hz", "big5": "cp950", "cp950": "cp950",
    "big5hkscs": "big5hkscs", "shift_jis": "cp932", "cp932": "cp932", "euc_jp": "euc_jp", "iso2022_jp": "iso2022_jp",
    "euc_kr": "cp949", "cp949": "cp949", "johab": "johab", "koi8-r": "koi8-r", "koi8-u": "koi8-u",
    **{f"cp{number}": f"cp{number}" for number in (*range(1250, 1259), 437, 850, 866, 874)},
    **{f"iso8859-{number}": f"iso8859-{number}" for number in (*range(2, 12), *range(13, 17))},
}
"""Declared encoding, by its name in Python -> the codec that decodes it: GB2312 is written by tools that mean GBK."""


@dataclass
class VocObject:
    """An object in an image, as the file has it: the first pixel is 1, and the last is part of the box.

    Attributes:
        line: on which it begins.
        number: index of the `<object>` in the file, from 0. One with several boxes is read as several objects of one
            number.
        texts: texts of its elements, by name, including the box.
    """

    line: int
    number: int
    texts: Dict[str, str] = field(default_factory=dict)


class BadAnnotation(DataError):
    """A file is no annotation.

    Args:
        line: on which.
        fact: the problem, as the end of a sentence.
    """

    def __init__(self, line: int, fact: str) -> None:
        super().__init__(fact)
        self.line, self.fact = line, fact


def decode_declared(content: bytes) -> Tuple[bytes, Optional[str]]:
    """Recodes a document whose encoding expat does not know.

    Returns:
        The document, and the encoding that the parser is to assume instead of the declared one; None if it reads the
        declaration itself.

    Raises:
        BadAnnotation: the declared encoding is unknown, or the bytes are not in it.
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
    """Returns the (width, height) that an image is said to have, None if unknown, and the objects in it.

    Raises:
        BadAnnotation: it is no XML, declares a document type, or its root is no annotation.
    """
    return _AnnotationReader().read(content)


class _AnnotationReader:
    def __init__(self) -> None:
        self._path: List[str] = []
        self._text: List[str] = []
        self._size: Dict[str, str] = {}
        self._objects: List[VocObject] = []
        self._boxes: List[Dict[str, str]] = []
        """Texts of the object that is being read."""

    def read(self, content: bytes) -> Tuple[Optional[Tuple[float, float]], List[VocObject]]:
        decoded, encoding = decode_declared(content)
        self._parser = expat.ParserCreate(encoding)
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text.append
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        try:
            self._parser.Parse(decoded, True)
        except expat.ExpatError as error:
            reason = expat.errors.messages.get(error.code, str(error.code))
            place = f"line {error.lineno}, column {error.offset + 1}"
            raise BadAnnotation(error.lineno, f"is no XML: {reason} ({place})") from error
        return self._said_size(), self._objects

    def _said_size(self) -> Optional[Tuple[float, float]]:
        width, height = (parse_number(self._size.get(side, "")) or 0.0 for side in ("width", "height"))
        return (width, height) if 0 < width < 1e6 and 0 < height < 1e6 else None  # many converters write 0

    def _refuse_doctype(self, *_: object) -> None:
        line = self._parser.CurrentLineNumber
        raise BadAnnotation(line, f"declares a document type on line {line}, which could name other files")

    def _start(self, name: str, _: object) -> None:
        if not self._path and name != "annotation":
            raise BadAnnotation(self._parser.CurrentLineNumber, f"is no annotation: its root is <{name[:40]}>")
        self._path.append(name)
        if len(self._path) > _DEEPEST:
            raise BadAnnotation(self._parser.CurrentLineNumber, f"has more than {_DEEPEST} elements in each other")
        if self._path[1:] == ["object"]:
            number = self._objects[-1].number + 1 if self._objects else 0
            self._objects.append(VocObject(self._parser.CurrentLineNumber, number))
            self._boxes = []
        elif self._path[1:] == ["object", "bndbox"]:
            self._boxes.append({})
        self._text.clear()

    def _end(self, name: str) -> None:
        below = tuple(self._path[1:])
        if below in _READ:
            self._keep(below, "".join(self._text).strip(XML_SPACE))
        elif below == ("object",):
            self._end_object()
        self._path.pop()
        self._text.clear()

    def _keep(self, below: Tuple[str, ...], text: str) -> None:
        """Notes the text of an element. One that comes twice with different texts is refused, as it is not known which
        of them is meant."""
        if below[0] == "size":
            texts = self._size
        else:
            texts = self._objects[-1].texts if len(below) == 2 else self._boxes[-1]
        if texts.setdefault(below[-1], text) != text:
            line, values = self._parser.CurrentLineNumber, f"{texts[below[-1]]!r:.40} and {text!r:.40}"
            raise BadAnnotation(line, f"has two <{below[-1]}> in one <{below[-2]}>, {values} (line {line})")

    def _end_object(self) -> None:
        first = self._objects[-1]
        others = [VocObject(first.line, first.number, {**first.texts, **edges}) for edges in self._boxes[1:]]
        first.texts.update(self._boxes[0] if self._boxes else {})
        self._objects += others
