"""Text generators: protocol, parameters, and the parts of exported folders that they run.

A token is shown as soon as it is certain: with one beam, until a first sequence has ended; with several beams, at the
end. Incomplete bytes (U+FFFD) are held back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Iterator, Optional, Protocol

import numpy as np
import pydantic

from mxtrain.data.exported_folder import ExportedFolder, targets_in
from mxtrain.exporting import standalone
from mxtrain.exporting.standalone import UnusableFolder
from mxtrain.serving.readers import field_tables, signature_errors

MAX_STATE = 1 << 26
"""Maximum number of elements of a cache or state before the first token."""


@dataclass(frozen=True)
class TextPiece:
    """A piece of the text that a network writes.

    Attributes:
        text: complete characters; may be empty.
        num_tokens: tokens that were written since the last piece.
        finish_reason: of the last piece: "stop" if the network ended the text, "length" if `max_tokens` or the limit
            of the task did.
    """

    text: str
    num_tokens: int
    finish_reason: str = ""


class GenerateParameters(pydantic.BaseModel):
    """Parameters of a request for text; fields of samples add their own."""

    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    max_tokens: int = pydantic.Field(ge=1, le=1 << 20, description="Largest number of tokens that are written.")


class TextGenerator(Protocol):
    """Writes texts with the parts of an exported folder."""

    @property
    def defaults(self) -> GenerateParameters:
        """Returns the default values of the parameters."""

    @property
    def most_tokens(self) -> Optional[int]:
        """Returns the largest `max_tokens` that the network allows; None = no limit."""

    def generate(self, folder: ExportedFolder, text: str, parameters: Any) -> Iterator[TextPiece]:
        """Yields pieces of text as soon as they are final; only the last one has a `finish_reason`.

        Args:
            folder: runs the parts.
            text: prompt or source.
            parameters: of the class of `defaults`.
        """


class ServedParts:
    """The parts of an exported folder, such as `step`, as an `ExportedFolder`.

    Args:
        folder: exported folder; it may be untrusted, since nothing in it is executed.
        signature: content of its signature.json.
        threads: threads of each part; 0 = number of cores.

    Attributes:
        sessions: name of a part -> its session.

    Raises:
        UnusableFolder: a part is missing or damaged, or has other inputs than the signature says.
    """

    def __init__(self, folder: str, signature: Dict[str, Any], threads: int) -> None:
        self._folder, self.signature = folder, signature
        names = signature.get("parts", {})
        self.sessions = {name: standalone.load_session(folder, threads, f"{name}.onnx") for name in names}
        for name, session in self.sessions.items():
            require_described(name, signature["parts"][name], session)

    def run(self, inputs: Dict[str, np.ndarray], part: str = "") -> Dict[str, np.ndarray]:
        """See `ExportedFolder.run`."""
        return standalone.run(self.sessions[part], inputs)

    def read(self, name: str) -> bytes:
        """See `ExportedFolder.read`."""
        return standalone.read_file(self._folder, standalone.plain_name(name), standalone.MAX_JSON_BYTES)

    def read_arrays(self, name: str) -> Dict[str, np.ndarray]:
        """See `ExportedFolder.read_arrays`."""
        return standalone.optional_arrays(self._folder, name)


def require_described(part: str, described: Any, session: Any) -> None:
    """Raises an `UnusableFolder` if the inputs in the signature are not those of the network, or are huge."""
    shapes = {entry["name"]: entry["shape"] for entry in described["inputs"]}
    if set(shapes) != {node.name for node in session.get_inputs()}:
        raise UnusableFolder(f"{standalone.SIGNATURE}: the inputs of {part} are not those of {part}.onnx")
    for shape in shapes.values():
        # Python's integers: sizes of a stranger's signature could overflow int64 to a small product.
        if np.prod([size for size in shape if type(size) is int], dtype=object) > MAX_STATE:
            raise UnusableFolder(f"{standalone.SIGNATURE}: the inputs of {part} have the shape {str(shape)[:100]}")


def make_generator(parts: ServedParts) -> Optional[TextGenerator]:
    """Builds the text generator of a folder; returns None if its network generates no text.

    Raises:
        UnusableFolder: the signature or a tokenizer is damaged, or a library is missing.
    """
    table = field_tables("GENERATORS")
    make = next((table[name] for name in targets_in(parts.signature) if name in table), None)
    if make is None or "step" not in parts.sessions:
        return None
    with signature_errors():
        generator: TextGenerator = make(parts)
        return generator
