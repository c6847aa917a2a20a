"""A network from a file: the graph that MXNet's Module API, Gluon's `export` or SageMaker has written."""

from __future__ import annotations

import base64
import functools
import glob
import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.files.download.transfer import WrongContent
from mxtrain.files.regular_files import MAX_TEXT_BYTES, read_regular_text
from mxtrain.model.network_archive import is_archive, read_archive
from mxtrain.model.spec import Model
from mxtrain.model.symbol.graph_file import parse_graph
from mxtrain.model.symbol.heads import find_prediction
from mxtrain.model.symbol.sagemaker import trained_with
from mxtrain.model.symbol.scaling import takes_pixels
from mxtrain.model.symbol.ssd_graph import is_ssd
from mxtrain.types import NonNegative, PathText, Positive, Shape, Spec
from mxtrain.types.fields import expand_path
from mxtrain.types.kinds import Arrays, ClassIndex, ClassSet, Number, Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import SymbolGraph

SYMBOL_END = "-symbol.json"
MAX_LISTED = 10
"""Longest list of epochs in a message."""
_EXAMPLE = "model.symbol=old-symbol.json model.weights=old-0003.params"


class StoredGraph(Spec):
    """The graph itself, as checkpoints keep it: they need no other file."""

    file: str
    """The file that it was read from."""
    content: str
    """Its JSON, compressed by zlib, in base64."""

    @classmethod
    def of(cls, file: str, text: str) -> Dict[str, str]:
        """Returns the fields for a file and its text."""
        return {"file": file, "content": base64.b64encode(zlib.compress(text.encode(), 9)).decode()}

    @property
    def text(self) -> str:
        """Returns the JSON.

        Raises:
            ValueError: the content is damaged.
        """
        try:
            unpacked = zlib.decompressobj().decompress(base64.b64decode(self.content, validate=True), MAX_TEXT_BYTES)
            return unpacked.decode()
        except (ValueError, zlib.error) as error:
            raise ValueError(f"graph.content is damaged ({error}). Leave model.graph out") from error


class GraphModel(Model):
    """Base class of networks that are known by their graph and their weights: keeps the graph."""

    weights_classes: List[str] = []
    """Names of the classes of the file in their order: the scores of classes that the data have too are kept."""
    graph: Optional[StoredGraph] = None
    """The graph of the file, which a checkpoint keeps. Leave it out."""

    @pydantic.model_validator(mode="after")
    def _check_graph(self) -> GraphModel:
        if self.graph is not None:
            self.check_graph()
        return self

    def check_graph(self) -> None:
        """Checks the graph, if there is one.

        Raises:
            ValueError: it does not fit; the message says what to type.
        """

    @functools.cached_property
    def parsed(self) -> SymbolGraph:
        """Returns the graph as in its file."""
        assert self.graph is not None
        return parse_graph(self.graph.text, self.graph.file)

    @property
    def recorded(self) -> Mapping[str, object]:
        return {} if self.graph is None else {"graph": self.graph.model_dump()}

    @property
    def takes_pixels(self) -> bool:
        return self.graph is not None and takes_pixels(self.parsed)

    @property
    def classes_in_weights(self) -> Sequence[str]:
        return self.weights_classes


class GraphFile(GraphModel):
    """Base class of networks in MXNet's own files: finds the files."""

    symbol: Optional[PathText] = None
    """The graph: a file `PREFIX-symbol.json`, or a `model.tar.gz` of SageMaker, which has weights, too."""
    prefix: Optional[PathText] = None
    """In place of `symbol` and `weights`: the start of their names, e.g. models/old for models/old-symbol.json and
    models/old-0003.params."""
    epoch: Optional[NonNegative] = None
    """Number in the name of the weights of `prefix`; None = the largest one there."""

    trained_side: Optional[Positive] = None
    """Side of the images in pixels for `dataset.image_size=auto`; None = as a `model.tar.gz` of SageMaker says."""

    option: ClassVar[str] = "symbol"
    """Its name in conf/model/, for messages."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _find_files(cls, values: Any) -> Any:
        values = dict(values)
        prefix, symbol = values.get("prefix"), values.get("symbol")
        if prefix is not None and symbol is not None:
            raise ValueError(f"symbol={symbol} and prefix={prefix} name two graphs. Give one of them")
        if prefix is None and values.get("epoch") is not None:
            raise ValueError(f"epoch={values['epoch']} belongs to prefix=. Type e.g. model.prefix=old model.epoch=3")
        stored = values.get("graph")
        if isinstance(prefix, str):
            symbol = expand_path(prefix) + SYMBOL_END
            if values.get("weights") is None and stored is None:
                values["weights"] = _weights_of(expand_path(prefix), values.get("epoch"))
        if isinstance(symbol, str):
            symbol = expand_path(symbol)
            if is_archive(symbol) and values.get("weights") is None and stored is None:
                values["weights"] = symbol
            if not isinstance(stored, Mapping) or stored.get("file") != symbol:
                text = read_graph_text(symbol)
                values["graph"] = StoredGraph.of(symbol, text)
                values.update(cls.read_further(text, values))
                if is_archive(symbol) and values.get("trained_side") is None:
                    values["trained_side"] = trained_with(Path(symbol)).side
        return values

    @classmethod
    def read_further(cls, text: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns further fields that follow from the files, which are read once; by default none.

        Args:
            text: JSON of the graph.
            values: fields that are known, among them `weights`.

        Raises:
            ValueError: the files do not fit; the message says what to type.
        """
        return {}

    @property
    def recorded(self) -> Mapping[str, object]:
        return {**super().recorded, "trained_side": self.trained_side} if self.graph is not None else {}

    @property
    def usual_side(self) -> Optional[int]:
        """Returns the side of the images that an archive was trained with, or `trained_side`."""
        return self.trained_side

    def require_known(self, names: Sequence[str]) -> None:
        """Checks that a file is named.

        Raises:
            ConfigError: none is.
        """
        if self.graph is None:
            raise ConfigError(
                f"model={self.option} needs the name of a file. Type {_EXAMPLE}, or model.prefix=old model.epoch=3."
            )


class SymbolFile(GraphFile):
    """A network that is known by its graph and its weights.

    The graph is cut in front of losses and probabilities, and labels are no inputs any more. A last layer with another
    number of units than the data have classes gets that number, and starts from `init`.
    """

    takes: ClassVar[Takes] = Takes(Arrays, ClassIndex, ClassSet, Number)

    output: str = ""
    """The layer whose output the network returns, by its name in the graph; empty = the prediction in front of the
    loss. `mxtrain inspect FILE` lists names."""
    new_layer: bool = False
    """Put a new dense layer with the number of classes behind `output`."""

    def check_graph(self) -> None:
        if not self.output and is_ssd(self.parsed):
            raise ValueError(
                f"{self.graph.file if self.graph else ''} is the graph of an SSD detector. Type model=symbol_ssd "
                "task=detection in place of model=symbol, or name another output by model.output="
            )
        find_prediction(self.parsed, self.output)

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: an operator is unknown to MXNet, or has arguments that it refuses.
        """
        from mxtrain.model.symbol.network import StructureMatcher, build_network

        assert self.graph is not None
        network = build_network(self.graph.text, self.output, num_classes if self.new_layer else None, num_classes)
        network.match_structure = StructureMatcher(self.graph.text, input_shape)
        return network

    def build_filled(self, num_classes: int, **known: object) -> gluon.HybridBlock:
        return self.build(num_classes, ())


def read_graph_text(path: str) -> str:
    """Returns the JSON of a graph, of a file or of the only one in an archive.

    Raises:
        ValueError: it cannot be read; the message says why.
    """
    try:
        if not is_archive(path):
            return read_regular_text(path)
        texts = read_archive(path).texts
    except WrongContent as damage:
        raise ValueError(f"symbol={path} {damage}") from damage
    except UnicodeDecodeError as error:
        raise ValueError(
            f"symbol={path} is no text, so it is no graph. Weights belong into model.weights: {_EXAMPLE}"
        ) from error
    except OSError as error:
        there = sorted(glob.glob(str(Path(path).parent / f"*{SYMBOL_END}")))
        near = f" In its folder are {', '.join(there[:4])}." if there else ""
        raise ValueError(f"symbol={path} cannot be read: {error.strerror}.{near} Type e.g. {_EXAMPLE}") from error
    contents = {name: content for name, content in texts.items() if name.endswith(SYMBOL_END)}
    if len(contents) != 1:
        raise ValueError(
            f"symbol={path} holds {len(contents)} files *{SYMBOL_END}: {', '.join(contents) or 'none'}. One is needed; "
            f"unpack the archive, and type {_EXAMPLE}"
        )
    return next(iter(contents.values())).decode("utf-8-sig", "replace")


def _weights_of(prefix: str, epoch: Any) -> str:
    """Returns the weights of a prefix: those of an epoch, or of the last one.

    Raises:
        ValueError: there are none; names the epochs that there are, and the nearest one.
    """
    files = _epochs_of(prefix)
    if isinstance(epoch, int) and epoch >= 0:
        file = f"{prefix}-{epoch:04d}.params"
        if os.path.exists(file) or not files:  # the reader of weights names a missing file
            return file
        nearest = min(files, key=lambda number: (abs(number - epoch), number))
        raise ValueError(
            f"epoch={epoch}: there is no file {file}, but {listed_epochs(files)}. The nearest one is "
            f"model.epoch={nearest}"
        )
    if not files:
        raise ValueError(
            f"prefix={prefix}: there is no file {prefix}-0000.params, or of another epoch. Type {_EXAMPLE}"
        )
    return files[max(files)]


def listed_epochs(epochs: Iterable[int]) -> str:
    """Returns a phrase such as "the epochs 1, 2 and 10"; of many epochs, the first and the last ones."""
    numbers = [str(epoch) for epoch in sorted(epochs)]
    if len(numbers) == 1:
        return f"the epoch {numbers[0]}"
    if len(numbers) > MAX_LISTED:
        numbers[MAX_LISTED // 2 : -MAX_LISTED // 2] = ["..."]
    return f"the epochs {', '.join(numbers[:-1])} and {numbers[-1]}"


def _epochs_of(prefix: str) -> Dict[int, str]:
    """Returns the files of weights with a prefix by their epoch."""
    pattern = re.compile(re.escape(prefix) + r"-(\d{4,})\.params")
    matches = map(pattern.fullmatch, glob.glob(f"{glob.escape(prefix)}-*.params"))
    return {int(match[1]): match[0] for match in matches if match}


def last_epoch(prefix: str) -> Optional[Tuple[int, str]]:
    """Returns the largest epoch of the weights with a prefix, and their file; None if there are none."""
    return max(_epochs_of(prefix).items(), default=None)
