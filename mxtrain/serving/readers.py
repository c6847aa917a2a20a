"""Readers of request bodies that are not arrays, e.g. images, texts and recordings; the field packages define them."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, NamedTuple, Optional, Protocol, Sequence

import numpy as np

import mxtrain
from mxtrain.config.libraries import EXTRAS, check_versions
from mxtrain.data.exported_folder import ExportedFolder
from mxtrain.errors import DataError
from mxtrain.exporting import standalone
from mxtrain.exporting.standalone import UnusableFolder

Answer = Dict[str, Any]
JSON_TYPE, CSV_TYPE, TSV_TYPE = "application/json", "text/csv", "text/tab-separated-values"
JSON_LINES_TYPES = ("application/jsonl", "application/x-ndjson")
FIELD_MODULE = "served"
"""Module of a field's package that reads its samples and writes texts. It holds READERS, from the name of a kind of
samples, and may hold GENERATORS, from the name of a kind of targets."""


class ReadBody(NamedTuple):
    """A body that was read.

    Attributes:
        inputs: inputs of the network for one sample, (1, ...) each. A sample may need several rows, at most
            `BodyLimits.max_rows`.
        about: facts of the sample that the description of its answer needs, such as the size of an image.
        rest: inputs of further runs of the network for this sample; all outputs are joined in this order.
        unseen: name of a column, or "tokens" -> number of its values that training has not seen.
        others: further samples of the body, such as the slices of a volume; each has an answer of its own.
    """

    inputs: Dict[str, np.ndarray]
    about: Any = None
    rest: Iterable[Dict[str, np.ndarray]] = ()
    unseen: Mapping[str, int] = MappingProxyType({})
    others: Iterable[ReadBody] = ()


class BodyLimits(NamedTuple):
    """Limits of what a body becomes.

    Attributes:
        max_pixels: pixels of an image, or of all slices of a volume.
        max_rows: rows of the inputs of a network.
    """

    max_pixels: int
    max_rows: int


class BodyReader(Protocol):
    """Reads the body of a request as one sample."""

    @property
    def kind(self) -> str:
        """Returns "image", "video", "text", "sound" or "json", for the web page."""

    @property
    def media_types(self) -> Sequence[str]:
        """Returns the media types of bodies that it reads. With application/json it reads objects without a list of an
        input of the network."""

    @property
    def example(self) -> str:
        """Returns a body as JSON, for the web page; empty if bodies are not JSON."""

    @property
    def columns(self) -> Sequence[Mapping[str, str]]:
        """Returns name and kind of each column of a table; empty if samples are no rows of one."""

    def read(self, body: bytes, media_type: str, limits: BodyLimits) -> ReadBody:
        """Reads one sample, or the samples of a file that holds several.

        Args:
            body: body of the request.
            media_type: one of `media_types`.
            limits: limits of the sample.

        Raises:
            RequestError: the body cannot be read.
        """

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], about: Any
    ) -> Optional[Answer]:
        """Returns the answer for one sample; None if the reader knows no more than the task's usual one.

        Args:
            inputs, outputs: of the sample, (1, ...) each, or several rows; without the inputs of `ReadBody.rest`.
            about: `ReadBody.about`; None if the client has sent arrays.

        Raises:
            RequestError: the outputs are not those of such a network.
        """


class UsualAnswer:
    """Base class of readers that know no more than the usual answer of a task, e.g. the classes of classification."""

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], about: Any
    ) -> Optional[Answer]:
        """Returns None, see `BodyReader.describe`."""
        return None


MakeReader = Callable[[ExportedFolder, Sequence[Any]], Optional[BodyReader]]


def find_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[BodyReader]:
    """Returns the reader for the samples of an exported folder; None if it takes arrays alone.

    Args:
        folder: exported folder, possibly untrusted; its signature only selects one of mxtrain's readers.
        inputs: inputs of the network, as `TensorSpec`s.

    Raises:
        UnusableFolder: the signature or a tokenizer is damaged, or a library is missing.
    """
    make: Optional[MakeReader] = field_tables("READERS").get(str(folder.signature.get("samples")))
    if make is None:
        return None
    with signature_errors():
        return make(folder, inputs)


def require_tokenizer_libraries(signature: Mapping[str, Any]) -> None:
    """Rejects other versions of the libraries that read the tokenizers of a folder.

    Raises:
        DataError: another version is installed.
    """
    files = {fact["file"] for fact in signature.get("facts", {}).values() if isinstance(fact, dict) and "file" in fact}
    for name in sorted({"sentencepiece" if file.endswith(".model") else "tokenizers" for file in files}):
        check_versions(EXTRAS[name], "this network's tokenizer")


@contextmanager
def signature_errors() -> Iterator[None]:
    """Converts all errors of reading an untrusted signature to `UnusableFolder`."""
    try:
        yield
    except DataError as error:
        raise UnusableFolder(f"a tokenizer of the folder cannot be used: {str(error).rstrip('.')}") from error
    except ImportError as error:
        raise UnusableFolder(f"this network needs {error.name}: pip install {error.name}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()
        raise UnusableFolder(f"{standalone.SIGNATURE} is damaged: {' '.join(problem)[:300]}") from error


def field_tables(name: str) -> Dict[str, Any]:
    """Returns the tables of this name in the modules of all fields that are installed, joined."""
    tables: Dict[str, Any] = {}
    # Listed and not named: a removed field takes its reader with it, and a signature can lead to no other code.
    for root in mxtrain.__path__:
        for package in pkgutil.iter_modules([root]):
            folder = str(Path(root) / package.name)
            if package.ispkg and FIELD_MODULE in {module.name for module in pkgutil.iter_modules([folder])}:
                tables.update(vars(importlib.import_module(f"mxtrain.{package.name}.{FIELD_MODULE}")).get(name, {}))
    return tables
