"""Prepares a network for training from its description: built, initialised, loaded, frozen."""

from __future__ import annotations

import fnmatch
import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from mxtrain.engine.parameter_names import role_of
from mxtrain.errors import ConfigError, nearest
from mxtrain.model.base import Model
from mxtrain.model.graph.id_inputs import make_sparse, tables_of
from mxtrain.model.graph.kernels import average_by_mean
from mxtrain.model.graph.mended import called_in, mend_layers, refuse_wrong
from mxtrain.model.graph.symbol_block import keep_statistics
from mxtrain.model.graph.trace import NotTraceable, TraceFailure, blocks_by_path, recorded_calls, trace
from mxtrain.model.weights import WeightsReport, load_weights
from mxtrain.runtime.memory import shown_size, usable_memory
from mxtrain.types import LARGEST_COUNT, RecommenderFields, Shape, Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import Context, gluon
    from mxnet.initializer import Initializer

    from mxtrain.dataset.acting.policy import Actions
    from mxtrain.model.networks.embedding_table import EmbeddingTable

__all__ = [
    "Prepared",
    "WeightsReport",
    "distinct_parameters",
    "load_weights",
    "parameter_multipliers",
    "prepare_network",
]

NORM_AND_BIAS = ("gamma", "beta", "running_mean", "running_var", "bias")
SIZES_TO_SUGGEST = (16, 32, 64, 96, 128, 224, 299, 331)


@dataclass(frozen=True)
class Prepared:
    """A network that is ready to train.

    Attributes:
        network: the gluon.HybridBlock: all shapes known, all parameters on the device.
        weights_report: what came of `model.weights`; print it.
        dense_tables: why each table that is large enough has a gradient of all its rows all the same, a clause each.
    """

    network: gluon.Block
    weights_report: WeightsReport
    dense_tables: Sequence[str] = ()


def prepare_network(
    model: Model, *, num_classes: int, input_shape: Shapes, seed: int,
    device: Union[None, Context, List[Context]] = None, vocab_size: Optional[int] = None,
    output_shapes: Optional[Sequence[Shape]] = None, output_names: Sequence[str] = (),
    is_joint: Optional[bool] = None, field_sizes: Optional[Sequence[int]] = None, num_numbers: int = 0,
    num_indices: Optional[int] = None, sparse_from: Optional[int] = None, sparse_samples: int = 0,
    recommender_fields: Optional[RecommenderFields] = None, mean_rating: float = 0.0, actions: Optional[Actions] = None,
    elsewhere: bool = False,
) -> Prepared:  # fmt: skip
    """Builds the network of a description and gives every parameter its first value.

    A parameter's value is a function of the seed and its structural name only: not of the device, nor of what was built
    before.

    Args:
        model: the description.
        num_classes: length of the output vector.
        input_shape: (C, H, W) of what enters the network, or the shape of each of several inputs.
        seed: any integer.
        device: the MXNet context (or list of contexts) that parameters live on; None is cpu(0).
        vocab_size: of a network for text.
        output_shapes: of each array that it must return for one sample; empty: only it knows; by default scores of
            `num_classes`.
        output_names: of what each score is of, for weights of a file with scores of some of them.
        is_joint: of a network that translates: whether source and target have one vocabulary.
        field_sizes: of a network for features: how many ids each field has.
        num_numbers: of a network for features: how many numbers enter beside the ids.
        num_indices: of a network for ids and values: how many ids there are.
        sparse_from: numbers of the tables of embeddings of an input from which on they get gradients of the rows that
            a batch reads alone; None: never.
        sparse_samples: of a batch, whose ids must be few beside a table's rows for that; 0: they need not.
        recommender_fields: of a network for recommendation: how many users and items there are, and their features.
        mean_rating: of a network for recommendation, where ratings are to be predicted.
        actions: of a network that acts: what it may do.
        elsewhere: whether others hold the rows of such tables, so that there is no room for them here.

    Returns:
        The network and the report on its weights.

    Raises:
        ConfigError: the network cannot take such input, or a pattern matches nothing.
        WeightsError: `model.weights` cannot be read or does not fit.
    """
    from mxtrain.engine.backend import mx

    if actions is not None:
        network = model.build_policy(actions, shapes_of(input_shape)[0])
    elif recommender_fields is not None:
        network = _build_recommender(model, recommender_fields, mean_rating)
    elif num_indices is not None:
        network = model.build_indexed(num_classes, num_indices)
    elif field_sizes is not None:
        network = model.build_features(num_classes, field_sizes, num_numbers)
    elif vocab_size is None:
        network = model.build(num_classes, shapes_of(input_shape)[0])
    elif is_joint is not None:
        network = model.build_translator(num_classes, input_shape, vocab_size, is_joint)
    elif _scores_tokens(input_shape, output_shapes):
        network = model.build_tagger(num_classes, input_shape, vocab_size)
    else:
        network = model.build_text(num_classes, input_shape, vocab_size)
    # Before the trace in `infer_shapes`, which refuses wrong operators: only those that cannot be mended are left then.
    mend_layers(network)
    infer_shapes(network, input_shape, [(num_classes,)] if output_shapes is None else output_shapes or None)
    dense_tables: List[str] = []
    if sparse_from is not None:
        dense_tables = make_sparse(network, input_shape, sparse_from, sparse_samples)
    apart = [table for table in tables_of(network) if table.ids_from is not None] if elsewhere else []
    refuse_too_large(network, [table.weight for table in apart])
    average_by_mean(network, input_shape)
    initialize(network, model.init, seed, device if device is not None else mx.cpu(), apart)
    report = WeightsReport()
    if model.weights:
        report = load_weights(network, model.weights, model.classes_in_weights, output_names)
    freeze(network, model.freeze)
    parameter_multipliers(model, network)  # refuses patterns that match nothing, before anything runs
    return Prepared(network, report, dense_tables)


def _build_recommender(model: Model, fields: RecommenderFields, mean: float) -> gluon.Block:
    if model.recommends_by_features:
        return model.build_feature_recommender(fields)
    return model.build_recommender(fields.user_sizes[0], fields.item_sizes[0], mean)


def _scores_tokens(input_shape: Shapes, output_shapes: Optional[Sequence[Shape]]) -> bool:
    """Whether each token of a text is scored: not the text, and no positions that enter the network with it."""
    return len(shapes_of(input_shape)) == 3 and bool(output_shapes) and len((output_shapes or [()])[0]) == 2


def infer_shapes(network: gluon.Block, input_shape: Shapes, wanted: Optional[Sequence[Shape]] = None) -> None:
    """Tells every parameter its shape.

    Args:
        network: uninitialised.
        input_shape: of one sample, or of each of several inputs.
        wanted: of each array that it must return for one sample; None: whatever.

    Raises:
        ConfigError: the network cannot take a sample of this shape, returns something else than what is wanted, or
            calls an operator whose gradient is wrong.
    """
    output_shapes: Sequence[Optional[Shape]]
    try:
        traced = trace(network, input_shape)
    except NotTraceable:
        output_shapes = _run_once(network, input_shape)
    else:
        if traced.failure is not None:
            raise ConfigError(_misfit(network, input_shape, traced.failure))
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
    if wanted is not None and output_shapes != [(1, *shape) for shape in wanted]:
        shown = ", ".join("x".join(map(str, shape or ("?",))) for shape in output_shapes)
        asked = " and ".join(f"({', '.join(map(str, ('batch', *shape)))})" for shape in wanted)
        number = "one tensor" if len(wanted) == 1 else f"{len(wanted)} tensors"
        last = f", or end it with a layer of {wanted[0][-1]} units" if len(wanted[0]) < 3 else ""
        raise ConfigError(
            f"The network must return {number} of {asked}, a score per class, but for one sample it returns "
            f"{len(output_shapes)}: {shown}. Switch auxiliary outputs off{last}."
        )


def refuse_too_large(network: gluon.Block, apart: Sequence[gluon.Parameter] = ()) -> None:
    """Raises: ConfigError: a parameter has more numbers than MXNet counts, or all of them but those `apart`, which are
    elsewhere, do not fit into memory."""
    total = size = 0
    for name, parameter in network._collect_params_with_prefix().items():
        if any(parameter is one for one in apart):
            continue
        count = math.prod(parameter.shape)
        if count > LARGEST_COUNT:
            raise ConfigError(
                f"The network's parameter '{name}' would be {'x'.join(map(str, parameter.shape))}, which is {count:,} "
                f"numbers; an array of MXNet 1.9.1 holds {LARGEST_COUNT:,}. Make that layer smaller."
            )
        total += count
        size += 4 * count * (1 if parameter.grad_req == "null" else 2)
    memory = usable_memory()
    if size > memory:
        raise ConfigError(
            f"The network has {total:,} parameters, which with their gradients take {shown_size(size)}; this process "
            f"may have {shown_size(memory)}. Make the network smaller."
        )


def _run_once(network: gluon.Block, input_shape: Shapes) -> List[Shape]:
    """Shapes of the outputs and of deferred parameters, found by computing one sample."""
    from mxtrain.engine.backend import autograd, mx, nd

    network.initialize(mx.init.Zero(), ctx=mx.cpu(), force_reinit=True)
    inputs = [nd.zeros((1, *shape)) for shape in shapes_of(input_shape)]
    for one in inputs:
        one.attach_grad()  # so that autograd records what is done with it
    with recorded_calls(network) as recorder, autograd.record(train_mode=False):
        try:
            outputs = network(*inputs)
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            nd.waitall()
        except Exception as error:  # whatever the user's code raises
            given = [_shape_text(value.shape[1:]) for value in recorder.failed_inputs if hasattr(value, "shape")]
            raise ConfigError(
                f"The network failed on one sample of {_shapes_text(input_shape)}, in {_layer_text(recorder.failed)}, "
                f"which was given {', '.join(given) or 'nothing'}: {_first_line(error)}. Fit the network or the data, "
                "e.g. dataset.image_size=[32,32]."
            ) from error
    refuse_wrong(called_in(outputs))
    return [tuple(output.shape) for output in outputs]


def _misfit(network: gluon.Block, input_shape: Shapes, failure: TraceFailure) -> str:
    """The sentence for a network that cannot take its input."""
    given = " and ".join(_shape_text(shape[1:] if shape else None) for shape in failure.input_shapes)
    fitting = _fitting_size(network, input_shape)
    if fitting is not None:
        remedy = f"It works from {_shape_text(fitting)}: try dataset.image_size=[{fitting[1]},{fitting[2]}]."
    else:
        remedy = "Try samples of another size, e.g. dataset.image_size=[32,32], or another model."
    return (
        f"The network cannot take samples of {_shapes_text(input_shape)}: {_layer_text(failure.layer)} ({failure.op}) "
        f"is the first that fails, given {given}: {_reason(failure.reason)}. {remedy}"
    )


def _fitting_size(network: gluon.Block, input_shape: Shapes) -> Optional[Shape]:
    """The smallest usual size that is larger than the given one and that the network can take."""
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


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


def _reason(message: str) -> str:
    """MXNet's message without the stack trace and the address of the check."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for line in reversed(lines):
        if "Check failed" in line:
            return line[line.index("Check failed") :].rstrip(". :")
    return lines[-1].rstrip(".") if lines else "no reason given"


def distinct_parameters(network: gluon.Block) -> Dict[str, gluon.Parameter]:
    """Every parameter once, by structural name, in the network's order.

    A parameter that several layers share has several names and goes by the alphabetically first (GluonCV's GoogLeNet
    has its last layer under two). A file with these names opens with `load_parameters`.
    """
    parameters = network._collect_params_with_prefix()
    names: Dict[int, str] = {}
    for name in sorted(parameters):
        names.setdefault(id(parameters[name]), name)
    return {name: parameter for name, parameter in parameters.items() if names[id(parameter)] == name}


def _initializer(kind: str) -> Initializer:
    from mxtrain.engine.backend import mx

    return {
        "xavier": mx.init.Xavier,
        # He et al., "Delving deep into rectifiers" (2015): variance 2 / fan-in.
        "msra": lambda: mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
        "orthogonal": mx.init.Orthogonal,
        "normal": lambda: mx.init.Normal(0.01),
        "default": mx.init.Uniform,
    }[kind]()


def parameter_seed(seed: int, name: str) -> int:
    """The seed of one parameter: the first 31 bits of SHA-256 over the run's seed and the structural name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:4], "little") & 0x7FFFFFFF


def initialize(
    network: gluon.Block, kind: str, seed: int, device: Union[Context, List[Context]],
    apart: Sequence[EmbeddingTable] = (),
) -> None:  # fmt: skip
    """Gives every parameter a value that is a function of the seed and its structural name.

    Args:
        network: a block with known shapes.
        kind: as in `Model.init`; a layer's own initializer goes first.
        seed: any integer.
        device: context, or list of contexts.
        apart: tables that are elsewhere, whose rows get the same values there.

    Raises:
        ConfigError: the initializer cannot fill a parameter.
    """
    import numpy as np

    from mxtrain.engine.backend import mx

    for table in apart:
        table.leave_elsewhere(device[0] if isinstance(device, list) else device)
    skipped = [table.weight for table in apart]
    parameters = {
        name: parameter for name, parameter in distinct_parameters(network).items()
        if not any(parameter is one for one in skipped)
    }  # fmt: skip
    numpy_state = np.random.get_state()
    try:
        for name in parameters:
            own_seed = parameter_seed(seed, name)
            # Initializers draw on cpu(0) whatever the device, most with MXNet's generator, Orthogonal with numpy's.
            mx.random.seed(own_seed, ctx=mx.cpu(0))
            np.random.seed(own_seed)
            try:
                parameters[name].initialize(ctx=device, default_init=_initializer(kind), force_reinit=True)
            except ValueError as error:
                raise ConfigError(
                    f"model.init={kind} cannot initialise '{name}' of shape {parameters[name].shape}: "
                    f"{_first_line(error)}. Use model.init=default, or give the parameter an initializer of its own."
                ) from error
    finally:
        np.random.set_state(numpy_state)


def freeze(network: gluon.Block, patterns: Iterable[str]) -> List[str]:
    """Stops matched parameters from changing: no gradient, and no moving statistics for matched BatchNorms.

    Returns:
        The structural names that are frozen.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    from mxtrain.engine.backend import gluon

    parameters = network._collect_params_with_prefix()
    frozen = set()
    for pattern in patterns:
        frozen.update(_matching(pattern, parameters, "model.freeze"))
    for name in frozen:
        parameters[name].lr_mult = 0.0
        parameters[name].grad_req = "null"
    for path, block in blocks_by_path(network):
        if isinstance(block, gluon.nn.Dense) and block.bias is not None and block.weight.lr_mult == 0:
            if block.bias.grad_req != "null":
                # oneDNN computes a dense layer's bias gradient only together with its weight's, and leaves 0 otherwise.
                block.weight.grad_req = "write"
        statistics = {f"{path}.{name}".lstrip(".") for name in ("running_mean", "running_var")}
        if isinstance(block, gluon.nn.BatchNorm) and statistics <= frozen:
            # Else training would go on replacing them: they move without a gradient.
            block._kwargs["use_global_stats"] = True
        if isinstance(block, gluon.SymbolBlock):
            keep_statistics(block, {parameters[name].name for name in frozen})
    return sorted(frozen)


def is_trained(parameter: gluon.Parameter) -> bool:
    """Whether an optimizer may change a parameter; a frozen one may have a gradient all the same (see `freeze`)."""
    return parameter.grad_req != "null" and parameter.lr_mult != 0


def _matching(pattern: str, names: Iterable[str], key: str) -> List[str]:
    names = list(names)
    found = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        near = nearest(pattern.replace("*", ""), names, 3) or names[-2:]
        raise ConfigError(
            f"{key}: the pattern '{pattern}' matches no parameter of the network. Names are like "
            f"{', '.join(near)}; '*' stands for any text, e.g. '{near[0].split('.')[0]}.*'."
        )
    return found


def parameter_multipliers(model: Model, network: gluon.Block) -> Dict[str, Tuple[float, float]]:
    """The (lr_mult, wd_mult) of every parameter by structural name.

    Norm and bias have no weight decay if the description says so; `param_groups` follow in their order, and what a
    later one says replaces what an earlier one said.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    multipliers: Dict[str, Tuple[float, float]] = {}
    parameters = network._collect_params_with_prefix()
    for name, parameter in parameters.items():
        exempt = model.no_decay_norm_and_bias and role_of(name) in NORM_AND_BIAS
        multipliers[name] = (float(parameter.lr_mult), 0.0 if exempt else float(parameter.wd_mult))
    for group in model.param_groups:
        for name in _matching(group.pattern, parameters, "model.param_groups"):
            _, wd_mult = multipliers[name]
            multipliers[name] = (group.lr_mult, wd_mult if group.wd_mult is None else group.wd_mult)
    return multipliers
