"""A network from an ONNX file."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, ClassVar, Mapping, Optional, Sequence

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.model.onnx.builder import DATA
from mxtrain.model.onnx.convert import FIXED_KEY, PIXELS_KEY, input_shape_of, is_flagged
from mxtrain.model.onnx.reading import EXAMPLE, convert
from mxtrain.model.symbol.heads import find_prediction
from mxtrain.model.symbol.model import GraphModel, StoredGraph
from mxtrain.types import PathText, Shape
from mxtrain.types.fields import expand_path
from mxtrain.types.kinds import Arrays, ClassIndex, ClassSet, Number, Takes

if TYPE_CHECKING:
    from mxnet import gluon


_BATCHES = (2, 3)


class OnnxFile(GraphModel):
    """A network with its weights in an ONNX file, as PyTorch, TensorFlow and `mxtrain export` write them.

    Its operators become those of MXNet, and its arrays parameters that train. The network is cut in front of
    probabilities. A last layer with another number of units than the data have classes gets that number, and starts
    from `init`.
    """

    takes: ClassVar[Takes] = Takes(Arrays, ClassIndex, ClassSet, Number)

    file: Optional[PathText] = None
    """The file, NAME.onnx."""
    output: str = ""
    """The layer whose output the network returns, by its name; empty = the only prediction, without probabilities.
    `mxtrain inspect FILE` lists names."""
    new_layer: bool = False
    """Put a new dense layer with the number of classes behind `output`."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _convert(cls, values: Any) -> Any:
        values = dict(values)
        file, stored = values.get("file"), values.get("graph")
        if isinstance(file, str):
            file = expand_path(file)
            if values.get("weights") is None and stored is None:
                values["weights"] = file
            if not isinstance(stored, Mapping) or stored.get("file") != file:
                values["graph"] = StoredGraph.of(file, convert(file, partial=bool(values.get("output"))).text)
        return values

    def check_graph(self) -> None:
        find_prediction(self.parsed, self.output)

    @property
    def takes_pixels(self) -> bool:
        return self.graph is not None and is_flagged(self.parsed, PIXELS_KEY)

    @property
    def usual_side(self) -> Optional[int]:
        sides = set(input_shape_of(self.parsed)[2:]) if self.graph is not None else set()
        side = sides.pop() if len(sides) == 1 else None
        return side if isinstance(side, int) else None

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: the network computes right at another image size or for one batch size only.
        """
        from mxtrain.model.symbol.network import build_network

        assert self.graph is not None
        usual = input_shape_of(self.parsed)
        if is_flagged(self.parsed, FIXED_KEY) and input_shape and tuple(input_shape[1:]) != usual[2:]:
            side = "x".join(map(str, usual[2:]))
            raise ConfigError(
                f"model.file: {self.graph.file} pads or resizes images of {side} pixels, and would compute something "
                f"else for {'x'.join(map(str, input_shape[1:]))}. Type dataset.image_size={usual[2]}, or write the "
                "file for the other size."
            )
        network = build_network(self.graph.text, self.output, num_classes if self.new_layer else None, num_classes)
        if input_shape:
            _check_batches(network, tuple(input_shape), self.graph.file)
        return network

    def require_known(self, names: Sequence[str]) -> None:
        """Checks that a file is named.

        Raises:
            ConfigError: none is.
        """
        if self.graph is None:
            raise ConfigError(f"model=onnx needs the name of a file. Type {EXAMPLE}.")

    def build_filled(self, num_classes: int, **known: object) -> gluon.HybridBlock:
        return self.build(num_classes, ())


def _check_batches(network: gluon.SymbolBlock, input_shape: Shape, file: str) -> None:
    """Checks that reshaping keeps the number of elements for any batch size, which MXNet does not.

    Raises:
        ConfigError: a layer does not, because the file was written for one batch size.
    """
    from mxtrain.engine.backend import mx
    from mxtrain.model.graph.trace import first_outputs
    from mxtrain.model.symbol.graph_file import inputs_of

    internals = network._cached_graph[1].get_internals()
    nodes = json.loads(internals.tojson())["nodes"]
    first = first_outputs(internals, [node["name"] for node in nodes])
    for batch in _BATCHES:
        try:
            shapes = internals._infer_shape_impl(True, **{DATA: (batch, *input_shape)})[1]
        except mx.MXNetError:
            return  # it is described where the network is traced
        for number, node in enumerate(nodes):
            if node["op"] in ("Reshape", "reshape"):
                ((source, index),) = inputs_of(node)
                before, after = shapes[first[source] + index], shapes[first[number]]
                if before and after and math.prod(before) != math.prod(after):
                    raise ConfigError(
                        f"model.file: the layer '{node['name']}' of {file} makes {'x'.join(map(str, after))} of "
                        f"{'x'.join(map(str, before))}: it was written for another batch size or image size. Write "
                        "the file with an open batch size, e.g. by dynamic_axes in torch.onnx.export, or type the "
                        "file's dataset.image_size."
                    )
