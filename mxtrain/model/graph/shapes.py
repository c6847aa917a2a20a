"""Infers the shapes of a network's parameters and outputs, and reports the layer that rejects the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, List, Optional, Sequence

from mxtrain.errors import NUMPY_SEMANTICS, ConfigError
from mxtrain.model.graph.mxnet_workarounds import called_in, refuse_wrong
from mxtrain.model.graph.trace import NotTraceable, TraceFailure, recorded_calls, trace
from mxtrain.types import Shape, Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon

SIZES_TO_SUGGEST = (16, 32, 64, 96, 128, 224, 299, 331)


class WrongOutputs(ConfigError):
    """The outputs of a network have wrong shapes for the task."""


def infer_shapes(network: gluon.Block, input_shape: Shapes, required_shapes: Optional[Sequence[Shape]] = None) -> None:
    """Infers and sets the shapes of all parameters.

    Args:
        network: uninitialised network.
        input_shape: shape of one sample, or of each of several inputs.
        required_shapes: required shape of each output for one sample; None = not checked.

    Raises:
        ConfigError: the network cannot take a sample of this shape, returns other shapes than expected, or
            calls an operator whose gradient is wrong.
    """
    from mxtrain.engine.backend import mx

    if mx.util.is_np_array() or mx.util.is_np_shape():  # e.g. by the module of a network of the user's
        raise ConfigError(f"npx.set_np() is on: {NUMPY_SEMANTICS}")
    output_shapes: Sequence[Optional[Shape]]
    try:
        traced = trace(network, input_shape)
    except NotTraceable:
        output_shapes = _run_once(network, input_shape)
    else:
        if traced.failure is not None:
            raise ConfigError(_misfit(network, input_shape, traced.failure))
        # Refused before training: a wrong gradient gives no error, only a network that learns badly.
        refuse_wrong((node.layer, node.op, node.attrs) for node in traced.nodes)
        for parameter in network.collect_params().values():
            if traced.parameter_shapes.get(parameter.name) is not None:
                parameter.shape = traced.parameter_shapes[parameter.name]
        output_shapes = traced.output_shapes
    for name, parameter in network._collect_params_with_prefix().items():
        if parameter.shape is None or 0 in parameter.shape or -1 in parameter.shape:
            raise ConfigError(
                f"The shape of parameter '{name}' is not known because nothing uses it. Remove it from the network, or "
                "give its layer in_units or in_channels."
            )
    if required_shapes is not None and output_shapes != [(1, *shape) for shape in required_shapes]:
        shown = ", ".join("x".join(map(str, shape or ("?",))) for shape in output_shapes)
        required = " and ".join(f"({', '.join(map(str, ('batch', *shape)))})" for shape in required_shapes)
        # A single number is a value to predict, or the logit of one of two classes.
        meaning = "one value per sample" if list(required_shapes) == [(1,)] else "a score per class"
        number = "one tensor" if len(required_shapes) == 1 else f"{len(required_shapes)} tensors"
        last = f", or end it with a layer of {required_shapes[0][-1]} units" if len(required_shapes[0]) < 3 else ""
        advice = getattr(network, "output_advice", f"Switch auxiliary outputs off{last}.")
        raise WrongOutputs(
            f"The network must return {number} of {required}, {meaning}, but for one sample it returns "
            f"{len(output_shapes)}: {shown}. {advice}"
        )


def _run_once(network: gluon.Block, input_shape: Shapes) -> List[Shape]:
    """Computes one sample to find the shapes of outputs and deferred parameters; returns those of the outputs."""
    from mxtrain.engine.backend import autograd, mx, nd

    # Zeros draw no random numbers, so the run's own initialisation gives the same values afterwards.
    network.initialize(mx.init.Zero(), ctx=mx.cpu(), force_reinit=True)
    inputs = [nd.zeros((1, *shape)) for shape in shapes_of(input_shape)]
    for array in inputs:
        array.attach_grad()  # so that autograd records operations on it
    with recorded_calls(network) as recorder, autograd.record(train_mode=False):
        try:
            outputs = network(*inputs)
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            nd.waitall()
        except Exception as error:  # user code may raise anything
            shapes = [_shape_text(value.shape[1:]) for value in recorder.failed_inputs if hasattr(value, "shape")]
            raise ConfigError(
                f"The network failed on one sample of {_shapes_text(input_shape)}, in {_layer_text(recorder.failed)}, "
                f"which was given {', '.join(shapes) or 'nothing'}: {first_line(error)}. Fit the network or the data, "
                "e.g. dataset.image_size=[32,32]."
            ) from error
    refuse_wrong(called_in(outputs))
    return [tuple(output.shape) for output in outputs]


def _misfit(network: gluon.Block, input_shape: Shapes, failure: TraceFailure) -> str:
    """Returns the sentence for a network that cannot take its input."""
    input_text = " and ".join(_shape_text(shape[1:] if shape else None) for shape in failure.input_shapes)
    fitting = _fitting_size(network, input_shape)
    if fitting is not None:
        remedy = f"It works from {_shape_text(fitting)}: try dataset.image_size=[{fitting[1]},{fitting[2]}]."
    else:
        remedy = "Try samples of another size, e.g. dataset.image_size=[32,32], or another model."
    return (
        f"The network cannot take samples of {_shapes_text(input_shape)}: {_layer_text(failure.layer)} ({failure.op}) "
        f"is the first that fails, given {input_text}: {_reason(failure.reason)}. {remedy}"
    )


def _fitting_size(network: gluon.Block, input_shape: Shapes) -> Optional[Shape]:
    """Returns the smallest usual size that is larger than the given one and that the network can take."""
    first, *others = shapes_of(input_shape)
    if others or len(first) != 3:
        return None
    for size in SIZES_TO_SUGGEST:
        shape = (first[0], size, size)
        if size > min(first[1:]) and trace(network, shape).failure is None:
            return shape
    return None


def _shape_text(shape: Optional[Iterable[int]]) -> str:
    return "x".join(map(str, shape)) if shape else "unknown shape"


def _shapes_text(shapes: Shapes) -> str:
    return " and ".join("x".join(map(str, shape)) or "1" for shape in shapes_of(shapes))


def _layer_text(layer: Optional[str]) -> str:
    return f"layer '{layer}'" if layer else "the network itself"


def first_line(error: Exception) -> str:
    """Returns the message's first line without its full stop; the class where there is no message. MXNet's advice to
    call npx.set_np() is replaced, because that does not help here."""
    if "activated numpy semantics" in str(error):
        return f"it uses MXNet's NumPy interface. {NUMPY_SEMANTICS}".rstrip(".")
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


def _reason(message: str) -> str:
    """Returns MXNet's message without the stack trace and the address of the check."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]  # lint: a message of MXNet
    for line in reversed(lines):
        if "Check failed" in line:
            return line[line.index("Check failed") :].rstrip(". :")
    return lines[-1].rstrip(".") if lines else "no reason given"
