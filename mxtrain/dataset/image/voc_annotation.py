"""Reads an annotation of PASCAL VOC's: XML with a box for each thing in a picture.

XML of a stranger's can grow without end by entities, or name other files. So a document type, in which both are
declared, is refused. Parts of things (a person's head) have names and boxes in the same form inside an object: what an
element means depends on where it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple
from xml.parsers import expat

from mxtrain.errors import DataError

EDGES = ("xmin", "ymin", "xmax", "ymax")
_READ = {
    ("size", "width"), ("size", "height"), ("object", "name"), ("object", "difficult"),
    *(("object", "bndbox", edge) for edge in EDGES),
}  # fmt: skip
"""Elements below the root whose text is read."""
_DEEPEST = 64


@dataclass
class VocObject:
    """A thing in a picture, as the file has it: the first pixel is 1, and the last is part of the box.

    Attributes:
        line: on which it begins.
        texts: of the elements in it, by name.
    """

    line: int
    texts: Dict[str, str] = field(default_factory=dict)


class BadAnnotation(DataError):
    """A file is no annotation.

    Args:
        line: on which.
        fact: what is wrong, the end of a sentence.
    """

    def __init__(self, line: int, fact: str) -> None:
        super().__init__(fact)
        self.line, self.fact = line, fact


def parse_annotation(content: bytes) -> Tuple[Optional[Tuple[float, float]], List[VocObject]]:
    """The (width, height) that a picture is said to have, None where nobody says, and the things in it.

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
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text.append
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def read(self, content: bytes) -> Tuple[Optional[Tuple[float, float]], List[VocObject]]:
        try:
            self._parser.Parse(content, True)
        except expat.ExpatError as error:
            reason = expat.errors.messages.get(error.code, str(error.code))
            place = f"line {error.lineno}, column {error.offset + 1}"
            raise BadAnnotation(error.lineno, f"is no XML: {reason} ({place})") from error
        except ValueError as error:  # an encoding of several bytes that Python does not let it read
            raise BadAnnotation(1, f"is no XML that can be read: {error}") from error
        return self._said_size(), self._objects

    def _said_size(self) -> Optional[Tuple[float, float]]:
        try:
            width, height = (float(self._size[side]) for side in ("width", "height"))
        except (KeyError, ValueError):
            return None
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
            self._objects.append(VocObject(self._parser.CurrentLineNumber))
        self._text.clear()

    def _end(self, name: str) -> None:
        below = tuple(self._path[1:])
        if below in _READ:
            texts = self._size if below[0] == "size" else self._objects[-1].texts
            texts[name] = "".join(self._text).strip()
        self._path.pop()
        self._text.clear()
