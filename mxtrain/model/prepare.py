"""Prepares a network for training: builds, initialises, loads and freezes it according to its description."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable, Collection, List, Mapping, Optional, Sequence, Union

from mxtrain.engine.parameter_names import role_of
from mxtrain.errors import ConfigError
from mxtrain.model.batch_norms import let_statistics_move, norm_parameters
from mxtrain.model.graph.id_inputs import make_sparse, tables_of
from mxtrain.model.graph.kernels import average_by_mean, normalise_as_images
from mxtrain.model.graph.mxnet_workarounds import replace_wrong_layers
from mxtrain.model.graph.shapes import first_line, infer_shapes
from mxtrain.model.layer_decay import decay_rates
from mxtrain.model.lora import refuse_additions
from mxtrain.model.parameters import (
    NORM_AND_BIAS,
    distinct_parameters,
    freeze,
    freeze_named,
    parameter_multipliers,
    require_trained,
    train_only,
)
from mxtrain.model.spec import Model
from mxtrain.model.weights_report import WeightsReport
from mxtrain.model.widths import set_widths
from mxtrain.runtime.memory import shown_size, usable_memory
from mxtrain.types import MAX_COUNT, Shape, Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import Context, gluon
    from mxnet.initializer import Initializer

    from mxtrain.model.networks.embedding_table import EmbeddingTable
    from mxtrain.model.networks.lora import Additions


@dataclass(frozen=True)
class Prepared:
    """A network that is ready to train.

    Attributes:
        network: the gluon.HybridBlock, with known shapes and all parameters on the device.
        weights_report: report on `model.weights`, to be shown to the user.
        dense_tables: for each large table with a dense gradient, a clause with the reason.
        additions: low-rank additions; None without `model.lora`.
    """

    network: gluon.Block
    weights_report: WeightsReport
    dense_tables: Sequence[str] = ()
    additions: Optional[Additions] = None


@dataclass(frozen=True)
class TableOptions:
    """Treatment of the embedding tables of a network.

    Attributes:
        sparse_from: tables with at least this many elements get row-wise gradients; None = no table.
        sparse_samples: samples of a batch; a table only gets row-wise gradients if their ids are few compared with its
            rows. 0 = no such condition.
        remote_rows: True if servers hold the rows of such tables, so that no memory is allocated for them here.
        input_shape: shapes of the inputs in training; None if they are those of prediction.
    """

    sparse_from: Optional[int] = None
    sparse_samples: int = 0
    remote_rows: bool = False
    input_shape: Optional[Shapes] = None


DENSE_TABLES = TableOptions()
"""Every gradient of a table has all of its rows."""


def prepare_network(
    model: Model,
    *,
    num_classes: int,
    input_shape: Shapes,
    seed: int,
    device: Union[None, Context, List[Context]] = None,
    network: Optional[gluon.Block] = None,
    output_shapes: Optional[Sequence[Shape]] = None,
    output_names: Sequence[str] = (),
    tables: TableOptions = DENSE_TABLES,
    learns: bool = True,
    set_values: Callable[[gluon.Block], None] = lambda network: None,
) -> Prepared:
    """Builds and initialises the network of a description.

    The initial value of a parameter depends only on the seed and its structural name, not on the device or on other
    networks that were built before.

    Args:
        model: description of the network.
        num_classes: length of the output vector.
        input_shape: shape of the network's input without the batch axis, e.g. (C, H, W), or of each of several inputs.
        seed: any integer.
        device: MXNet context (or list of contexts) of the parameters; None is cpu(0).
        network: uninitialised network that a task has built; by default `model.build` builds it.
        output_shapes: required shape of each output for one sample; empty = not checked; by default `num_classes`
            scores.
        output_names: class name of each score, for weights files with other classes.
        tables: treatment of embedding tables.
        learns: False to disable gradients, for prediction.
        set_values: function that sets initial values which the description of the network alone does not determine.

    Returns:
        The network and the report on its weights.

    Raises:
        ConfigError: the network cannot take such input, or a pattern matches nothing.
        WeightsError: `model.weights` cannot be read or does not fit.
    """
    from mxtrain.engine.backend import mx

    if network is None:
        network = model.build(num_classes, shapes_of(input_shape)[0])
    # Must precede `infer_shapes`, whose trace rejects operators with wrong gradients: this replaces those that have a
    # workaround.
    replace_wrong_layers(network)
    required_shapes = [(num_classes,)] if output_shapes is None else output_shapes or None
    infer_shapes(network, input_shape, required_shapes)
    # Widths are changed on known shapes, and the shapes behind them are inferred once more.
    if model.widths:
        set_widths(network, model.widths)
        infer_shapes(network, input_shape, required_shapes)
    dense_tables: List[str] = []
    if tables.sparse_from is not None:
        id_shape = tables.input_shape or input_shape
        dense_tables = make_sparse(network, id_shape, tables.sparse_from, tables.sparse_samples)
    remote_tables = [table for table in tables_of(network) if table.ids_from is not None] if tables.remote_rows else []
    learned = [name for name, one in network._collect_params_with_prefix().items() if one.grad_req != "null"]
    if not learns or model.lora.rank:
        disable_gradients(network)
    # Checked before memory is taken: a process that exceeds it is killed without a message.
    refuse_too_large(network, [table.weight for table in remote_tables])
    # After shapes are known: whether a window covers the whole map depends on the size of the images.
    average_by_mean(network, input_shape)
    normalise_as_images(network, input_shape)
    valued = model.valued_parameters()
    device = device if device is not None else mx.cpu()
    initialize(network, model.init, seed, device, remote_tables, valued)
    model.set_initial_values(network)
    set_values(network)
    report = WeightsReport()
    if model.weights:
        # Readers of files of other libraries, which no other run needs.
        from mxtrain.model.weights import load_weights
        from mxtrain.model.weights_files import find_weights

        report = load_weights(
            network, find_weights(model.weights, model.published_name), model.classes_in_weights, output_names
        )
    refuse_additions(report.path, report.unused)
    additions = None
    if model.lora.rank:
        from mxtrain.model.networks.lora import add_lora

        # After the weights are loaded, whose files hold no additions.
        additions = add_lora(network, model.lora, report.fresh, learned)
        _fill(additions.parameters, model.init, seed, device)
        if model.lora.adapter is not None:
            from mxtrain.model.foreign.peft import load_adapter

            remarks = load_adapter(distinct_parameters(network), additions, model.lora)
            report = replace(report, remarks=[*report.remarks, *remarks])
        train_only(network, additions.trained)
    freeze(network, model.freeze)
    if model.freeze_batch_norm:
        freeze_batch_norms(network, input_shape, with_scale=model.freeze_batch_norm is True)
    if model.layer_decay is not None:
        decay_rates(network, input_shape, model.layer_decay)
    if learns:
        require_trained(network, model.freeze)
        let_statistics_move(network, input_shape)
    parameter_multipliers(model, network)  # refuses patterns that match nothing, before anything runs
    return Prepared(network, report, dense_tables, additions)


def freeze_batch_norms(network: gluon.Block, input_shape: Shapes, with_scale: bool) -> None:
    """Freezes the statistics of all batch norms, and scale and shift with `with_scale`.

    Raises:
        ConfigError: the network has no batch norm.
    """
    names = norm_parameters(network, input_shape, with_scale)
    if not names:
        raise ConfigError(
            "model.freeze_batch_norm: the network has no batch norm. Leave it out; layer norms have no statistics, and "
            "model.freeze=[*.gamma,*.beta] freezes their scale and shift."
        )
    freeze_named(network, names)


def refuse_too_large(network: gluon.Block, remote: Sequence[gluon.Parameter] = ()) -> None:
    """Raises a `ConfigError` if a parameter exceeds MXNet's array size, or all parameters exceed the memory.

    Args:
        network: network with known shapes.
        remote: parameters on servers, which are not counted.
    """
    total = size = 0
    for name, parameter in network._collect_params_with_prefix().items():
        if any(parameter is other for other in remote):
            continue
        count = math.prod(parameter.shape)
        if count > MAX_COUNT:
            raise ConfigError(
                f"The network's parameter '{name}' would be {'x'.join(map(str, parameter.shape))}, which is {count:,} "
                f"numbers; an array of MXNet 1.9.1 holds {MAX_COUNT:,}. Make that layer smaller."
            )
        total += count
        size += 4 * count * (1 if parameter.grad_req == "null" else 2)  # float32, and its gradient
    memory = usable_memory()
    if size > memory:
        raise ConfigError(
            f"The network has {total:,} parameters, which with their gradients take {shown_size(size)}; this process "
            f"may have {shown_size(memory)}. Make the network smaller."
        )


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


def _vector_initializer(kind: str, parameter: gluon.Parameter) -> Optional[Initializer]:
    """Returns the usual initializer of a norm's or bias vector, if `kind` cannot fill vectors and the layer has no
    initializer of its own, as in a SymbolBlock; otherwise None."""
    from mxtrain.engine.backend import mx

    role = role_of(parameter.name)
    fills = parameter.init is not None or len(parameter.shape) != 1 or kind not in ("xavier", "msra")
    if fills or role not in NORM_AND_BIAS:
        return None
    return mx.init.One() if role in ("gamma", "running_var") else mx.init.Zero()


def parameter_seed(seed: int, name: str) -> int:
    """Returns the seed of a parameter: 31 bits of the SHA-256 of the run's seed and the structural name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:4], "little") & 0x7FFFFFFF


def initialize(
    network: gluon.Block,
    kind: str,
    seed: int,
    device: Union[Context, List[Context]],
    remote_tables: Sequence[EmbeddingTable] = (),
    valued: Collection[str] = (),
) -> None:
    """Initialises all parameters. Each value is a function of the seed and the structural name.

    Args:
        network: block with known shapes.
        kind: initializer as in `Model.init`; a layer's own initializer takes precedence.
        seed: any integer.
        device: context, or list of contexts.
        remote_tables: tables whose rows servers hold; they get the same values there.
        valued: structural names of parameters that are set to known values afterwards, and are 0 until then.

    Raises:
        ConfigError: the initializer cannot fill a parameter.
    """
    for table in remote_tables:
        table.make_remote(device[0] if isinstance(device, list) else device)
    skipped = [table.weight for table in remote_tables]
    parameters = {
        name: parameter
        for name, parameter in distinct_parameters(network).items()
        if not any(parameter is weight for weight in skipped)
    }
    _fill(parameters, kind, seed, device, valued)


def _fill(
    parameters: Mapping[str, gluon.Parameter],
    kind: str,
    seed: int,
    device: Union[Context, List[Context]],
    valued: Collection[str] = (),
) -> None:
    """Initialises parameters by structural name, see `initialize`."""
    import numpy as np

    from mxtrain.engine.backend import mx

    # NumPy's global generator belongs to the user's code, so it is left as it was.
    numpy_state = np.random.get_state()
    try:
        for name in parameters:
            own_seed = parameter_seed(seed, name)
            # Initializers draw on cpu(0) for all devices: most with MXNet's generator, Orthogonal with NumPy's.
            mx.random.seed(own_seed, ctx=mx.cpu(0))
            np.random.seed(own_seed)
            own_init = mx.init.Zero() if name in valued else _vector_initializer(kind, parameters[name])
            try:
                parameters[name].initialize(own_init, device, _initializer(kind), force_reinit=True)
            except ValueError as error:
                raise ConfigError(
                    f"model.init={kind} cannot initialise '{name}' of shape {parameters[name].shape}: "
                    f"{first_line(error)}. Use model.init=default, or give the parameter an initializer of its own."
                ) from error
    finally:
        np.random.set_state(numpy_state)


def disable_gradients(network: gluon.Block) -> None:
    """Disables the gradients of all parameters except vectors, before their arrays are allocated.

    Vectors are small, and the vectors of batch norms are needed to recognise moving statistics.
    """
    for parameter in network.collect_params().values():
        if len(parameter.shape) > 1:
            parameter.grad_req = "null"
