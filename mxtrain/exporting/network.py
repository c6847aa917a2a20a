"""Traces a trained network, with normalisation and decoding, for the conversion to ONNX. Imports MXNet and onnx.

uint8 images, ids, numbers -> normalisation -> the network -> its outputs, and predictions decoded from them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.engine.backend import mx
from mxtrain.errors import ConfigError
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.graph import Input, OnnxGraph, evaluate
from mxtrain.model.graph.trace import NotTraceable, input_names, symbol_of
from mxtrain.types import Shape, shapes_of
from mxtrain.types.kinds import Images

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.symbol import Symbol

    from mxtrain.data.signature import Signature
    from mxtrain.training.trained import Trained

    Dims = Tuple[Union[int, str], ...]

BATCHES = (5, 11, 23)
"""Batch sizes of the probes: primes, which are unlikely to be sizes of layers."""
SEQUENCES = {"text": "length", "symbols": "length", "frames": "time", "interactions": "items"}
"""Sample type -> name of the first dimension of samples of variable length."""
MIN_OPEN_LENGTH = 5
"""Sequences of fewer steps keep a fixed length."""
ADDED_PIXELS = ((0, 0), (33, 70), (95, 31))
"""Pixels added to height and width in each probe. Mostly odd numbers, because a formula that is right for multiples of
a network's stride may be wrong for other sizes."""
INTEGRAL = 0.02
"""Largest distance of a pixel, from 0 to 255, to the nearest integer. Pixels of 8-bit files are not exact integers
after normalisation in float32 was undone."""
Dynamic = Literal["auto", "batch", "none"]
INPUT, STATE, OUTPUT = "input", "state", "output"


@dataclass(frozen=True)
class Normalisation:
    """Normalisation x * scale + shift of pixels from 0 to 255. Both arrays are (1, C, 1, 1)."""

    scale_1C11: np.ndarray
    shift_1C11: np.ndarray

    @classmethod
    def from_signature(cls, signature: Signature) -> Normalisation:
        """Builds the normalisation of images, the same as that of loaders of images."""
        channels = shapes_of(signature.shape)[0][0]
        mean_C, std_C = (
            np.asarray(values if len(values) == channels else [sum(values) / len(values)] * channels)
            for values in (signature.mean, signature.std)
        )
        scale, shift = 1.0 / (255.0 * std_C), -mean_C / std_C
        return cls(*(array.astype(np.float32)[None, :, None, None] for array in (scale, shift)))

    def undo(self, image_BCHW: np.ndarray) -> np.ndarray:
        """Converts normalised images back to pixels from 0 to 255, float32."""
        return (image_BCHW - self.shift_1C11) / self.scale_1C11

    def apply(self, symbol: Symbol) -> Symbol:
        """Returns the symbol of the normalised pixels."""
        names = ("normalisation_scale", "normalisation_shift")
        scale, shift = (mx.sym.var(name) for name in names)
        pixels = mx.sym.cast(symbol, dtype="float32")
        return mx.sym.broadcast_add(mx.sym.broadcast_mul(pixels, scale), shift)

    @property
    def parameters(self) -> Dict[str, np.ndarray]:
        """Returns the arrays that `apply` reads, by name."""
        return {"normalisation_scale": self.scale_1C11, "normalisation_shift": self.shift_1C11}


class SymbolOperators:
    """The operators of mx.sym, and `constant`, which creates a variable and keeps its value."""

    def __init__(self) -> None:
        self.constants: Dict[str, np.ndarray] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(mx.sym, name)

    def constant(self, value: np.ndarray) -> Symbol:
        """Returns a variable with the value of an array."""
        name = f"decoding_constant{len(self.constants)}"
        self.constants[name] = value
        return mx.sym.var(name)


class TracedNetwork:
    """A network as one symbol from samples to outputs and predictions, for MXNet and for the conversion to ONNX.

    Args:
        trained: the trained network, on a CPU in float32.
        arrays: example inputs of the network, and its states; only their dtypes and pixel values are used.

    Raises:
        ConfigError: the network cannot be traced.
    """

    def __init__(self, trained: Trained, arrays: Sequence[np.ndarray]):
        description, signature = trained.description, trained.signature
        network: gluon.Block = trained.strategy.gather()
        self.shapes: List[Shape] = [tuple(shape) for shape in shapes_of(signature.shape)]
        self.state_shapes: List[Shape] = [tuple(shape) for shape in description.model.state_shapes]
        count = len(self.shapes) + len(self.state_shapes)
        is_image = issubclass(description.dataset.gives.sample, Images) and len(signature.mean) > 0
        self.normalisation = Normalisation.from_signature(signature) if is_image else None
        self.kind = description.dataset.gives.sample.name
        self._any_size = description.task.export_form().any_size
        self._types = [array.dtype.name for array in arrays]
        self.reads_bytes = self.normalisation is not None and is_integral(self.normalisation.undo(arrays[0]))
        """True if the graph takes images as uint8, False if as float32 from 0 to 255."""
        try:
            symbol, _ = symbol_of(network, training=False, num_inputs=count)
        except NotTraceable as error:
            raise ConfigError(f"export: the network cannot be traced: {error}.") from error
        inner = input_names(count)
        self.input_names = [f"{INPUT}{k}" for k in range(len(self.shapes))] if len(self.shapes) > 1 else [INPUT]
        self.input_names += [f"{STATE}{k}" for k in range(len(self.state_shapes))]
        replacements = {old: mx.sym.var(new) for old, new in zip(inner, self.input_names)}
        if self.normalisation is not None:
            replacements[inner[0]] = self.normalisation.apply(replacements[inner[0]])
        joined: Any = symbol  # calling a symbol replaces its variables by other symbols
        all_outputs = list(joined(**{name: new for name, new in replacements.items() if name in symbol.list_inputs()}))
        num_states = len(self.state_shapes)
        outputs, states = (all_outputs[:-num_states], all_outputs[-num_states:]) if num_states else (all_outputs, [])
        self.num_raw = len(outputs)
        F: Any = SymbolOperators()
        decoded = description.task.export_form().outputs(F, outputs, description, signature)
        self.output_names = [f"{OUTPUT}{k}" for k in range(len(outputs))] if len(outputs) > 1 else [OUTPUT]
        self.output_names += [f"next_{STATE}{k}" for k in range(num_states)]
        self.output_names += list(decoded)
        self.symbol = mx.sym.Group([*outputs, *states, *decoded.values()])
        self.parameters = {name: parameter.data().asnumpy() for name, parameter in network.collect_params().items()}
        self.parameters.update(F.constants)
        if self.normalisation is not None:
            self.parameters.update(self.normalisation.parameters)

    def enter(self, arrays: Sequence[np.ndarray]) -> Dict[str, np.ndarray]:
        """Converts a batch of a loader to inputs of the graph. Images are converted back to pixels.

        Args:
            arrays: inputs of the network, and its states.
        """
        first, *other_arrays = arrays
        if self.normalisation is not None:
            first = self.normalisation.undo(first)
            first = np.clip(np.rint(first), 0, 255).astype(np.uint8) if self.reads_bytes else first
        array_of = dict(zip(self.input_names, [first, *other_arrays]))
        read = self.symbol.list_inputs()
        return {name: np.ascontiguousarray(array) for name, array in array_of.items() if name in read}

    def evaluate(self, inputs: Mapping[str, np.ndarray], symbol: Optional[Symbol] = None) -> List[np.ndarray]:
        """Returns the outputs that MXNet computes."""
        return evaluate(self.symbol if symbol is None else symbol, {**self.parameters, **inputs})

    def choices(self, dynamic: Dynamic) -> Iterator[Tuple[Dict[str, Input], List[Dict[str, int]]]]:
        """Yields (inputs, probes), from the most to the least open dimensions; the caller takes the first that works.

        First all dimensions that may be open, then only the batch, then none.

        Args:
            dynamic: "auto": all of these; "batch": without the first; "none": only the last.
        """
        open_shapes = self._open_shapes()
        if dynamic == "auto" and open_shapes != self.shapes:
            yield self._inputs("batch", open_shapes), self._probes(open_shapes)
        if dynamic != "none":
            yield self._inputs("batch", self.shapes), self._probes(self.shapes)
        yield self._inputs(1, self.shapes), [{}]

    def _open_shapes(self) -> List[Dims]:
        if self.normalisation is not None:
            is_open = self._any_size and len(self.shapes) == 1
            return [(self.shapes[0][0], "height", "width")] if is_open else list(self.shapes)
        name = SEQUENCES.get(self.kind)
        if name is None:
            return list(self.shapes)
        names: Dict[int, str] = {}
        for shape in self.shapes:
            if shape and shape[0] >= MIN_OPEN_LENGTH:
                # Inputs of equal length belong to one sequence, e.g. ids and segments of a text, and share an open
                # dimension.
                names.setdefault(shape[0], name if not names else f"{name}{len(names)}")
        return [(names.get(shape[0], shape[0]), *shape[1:]) if shape else shape for shape in self.shapes]

    def _inputs(self, batch: Union[int, str], shapes: Sequence[Dims]) -> Dict[str, Input]:
        types = ["uint8" if self.reads_bytes else self._types[0], *self._types[1:]]
        dims = [(batch, *shape) for shape in [*shapes, *self.state_shapes]]
        read = self.symbol.list_inputs()
        return {name: Input(sizes, dtype) for name, sizes, dtype in zip(self.input_names, dims, types) if name in read}

    def _probes(self, shapes: Sequence[Dims]) -> List[Dict[str, int]]:
        sizes = {
            name: size
            for dims, shape in zip(shapes, self.shapes)
            for name, size in zip(dims, shape)
            if isinstance(name, str)
        }
        probes = []
        for number, batch in enumerate(BATCHES):
            probe = {"batch": batch}
            for position, (name, size) in enumerate(sizes.items()):
                more = {"height": ADDED_PIXELS[number][0], "width": ADDED_PIXELS[number][1]}
                probe[name] = size + more[name] if name in more else _shorter(size, position)[number]
            probes.append(probe)
        return probes

    def build(self, inputs: Mapping[str, Input], probes: Sequence[Mapping[str, int]]) -> OnnxGraph:
        """Builds the ONNX graph for one of `choices`."""
        return OnnxGraph(self.symbol, self.parameters, inputs, probes, CONVERTERS)


def _shorter(size: int, position: int = 0) -> Tuple[int, ...]:
    """Returns the lengths of a sequence in the probes. They stay different after layers with a stride of 4.

    Args:
        size: length in training.
        position: number of the sequence among those of a sample.
    """
    # Lengths that differ by one or three would be equal behind layers that take every fourth step. Those of a further
    # sequence are shorter by its position, or a target of half the length would be half the source in each probe.
    lengths = size - max(size // 4, 1) - position, size - max(size // 2 + 1, 3) - 2 * position
    return (size, *(max(length, 1) for length in lengths))


def is_integral(image_BCHW: np.ndarray) -> bool:
    """Returns True if pixels are integers from 0 to 255 up to rounding, as those of 8-bit image files."""
    rounded = np.rint(image_BCHW)
    return bool((np.abs(image_BCHW - rounded) < INTEGRAL).all() and rounded.min() >= 0 and rounded.max() <= 255)
