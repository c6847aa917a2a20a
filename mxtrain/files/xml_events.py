"""Reads XML by the events of expat.

Untrusted XML can declare entities that expand without limit, or that read other files. Therefore a document type, which
declares entities, is rejected.
"""

from __future__ import annotations

from typing import Dict, List, Optional
from xml.parsers import expat

MAX_DEPTH = 64
"""Largest number of nested elements that formats have."""


class XmlError(ValueError):
    """The content is no XML, or declares a document type.

    Args:
        line: number of the line.
        fact: the problem, as the end of a sentence.
    """

    def __init__(self, line: int, fact: str) -> None:
        super().__init__(fact)
        self.line, self.fact = line, fact


class DocumentTypeError(XmlError):
    """The content declares a document type."""


class XmlReader:
    """Base class of readers of a format, which define `start` and `end`."""

    _parser: expat.XMLParserType

    def __init__(self) -> None:
        self.text: List[str] = []
        """Text since the last element began or ended, in pieces."""

    @property
    def line(self) -> int:
        """Returns the number of the present line."""
        return self._parser.CurrentLineNumber

    def start(self, name: str, values: Dict[str, str]) -> None:
        """Receives the beginning of an element and its attributes."""
        raise NotImplementedError

    def end(self, name: str) -> None:
        """Receives the end of an element."""
        raise NotImplementedError

    def parse(self, content: bytes, encoding: Optional[str] = None) -> None:
        """Reads a file.

        Args:
            content: the file.
            encoding: its encoding, in place of the declared one.

        Raises:
            XmlError: it is no XML, or declares a document type or an encoding that expat cannot read.
        """
        self._parser = expat.ParserCreate(encoding)
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self.start
        self._parser.EndElementHandler = self.end
        self._parser.CharacterDataHandler = self.text.append
        # The parser meets the document type in any encoding; a search for <!DOCTYPE would miss some.
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        try:
            self._parser.Parse(content, True)
        except expat.ExpatError as error:
            reason = expat.errors.messages.get(error.code, str(error.code))
            location = f"line {error.lineno}, column {error.offset + 1}"
            raise XmlError(error.lineno, f"is no XML: {reason} ({location})") from error
        except (LookupError, ValueError) as error:
            # Python's decoders of declared encodings raise these in the middle of expat; readers raise others.
            if type(error) is not LookupError and "encodings are not supported" not in str(error):
                raise
            raise XmlError(1, f"declares an encoding that is not read ({error})") from error

    def _refuse_doctype(self, *_: object) -> None:
        fact = f"declares a document type on line {self.line}, which could name other files"
        raise DocumentTypeError(self.line, fact)
