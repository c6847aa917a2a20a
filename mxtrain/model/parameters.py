"""A network's parameters by name: which there are, which stay as they are, and at which pace the others learn."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Collection, Dict, Iterable, List, Sequence, Tuple

from mxtrain.engine.parameter_names import role_of
from mxtrain.errors import ConfigError, nearest
from mxtrain.model.batch_norms import freeze_statistics
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.model.spec import Model

if TYPE_CHECKING:
    from mxnet import gluon

NORM_AND_BIAS = ("gamma", "beta", "running_mean", "running_var", "bias")


def distinct_parameters(network: gluon.Block) -> Dict[str, gluon.Parameter]:
    """Returns every parameter once, by structural name, in the network's order.

    A parameter that several layers share is listed under its alphabetically first name (GluonCV's GoogLeNet
    has its last layer under two). A file with these names opens with `load_parameters`.
    """
    parameters = network._collect_params_with_prefix()
    names: Dict[int, str] = {}
    for name in sorted(parameters):
        # Sorted, so that the name of a shared parameter does not depend on the order in which layers were added.
        names.setdefault(id(parameters[name]), name)
    return {name: parameter for name, parameter in parameters.items() if names[id(parameter)] == name}


def freeze(network: gluon.Block, patterns: Iterable[str]) -> List[str]:
    """Stops matched parameters from changing: no gradient, and fixed statistics for batch norms whose statistics match.

    Returns:
        The structural names that are frozen.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    parameters = network._collect_params_with_prefix()
    frozen = set()
    for pattern in patterns:
        frozen.update(_matching(pattern, parameters, "model.freeze"))
    freeze_named(network, frozen)
    return sorted(frozen)


def freeze_named(network: gluon.Block, frozen: Collection[str]) -> None:
    """Freezes parameters by their structural names, see `freeze`."""
    from mxtrain.engine.backend import gluon

    parameters = network._collect_params_with_prefix()
    for name in frozen:
        # The rate says that it is frozen: some frozen parameters keep a gradient for MXNet's sake.
        parameters[name].lr_mult = 0.0
        parameters[name].grad_req = "null"
    for _, block in blocks_by_path(network):
        is_frozen_dense = isinstance(block, gluon.nn.Dense) and block.weight.lr_mult == 0
        if is_frozen_dense and block.bias is not None and block.bias.grad_req != "null":
            # oneDNN computes a dense layer's bias gradient only together with its weight's, and leaves 0 otherwise.
            block.weight.grad_req = "write"
    freeze_statistics(network, frozen)


def train_only(network: gluon.Block, trained: Collection[str]) -> None:
    """Trains these parameters, given by their structural names, and freezes all others."""
    parameters = network._collect_params_with_prefix()
    kept = {id(parameters[name]) for name in trained}
    for name in trained:
        parameters[name].grad_req = "write"
    freeze_named(network, [name for name, parameter in parameters.items() if id(parameter) not in kept])


def is_trained(parameter: gluon.Parameter) -> bool:
    """Returns True if an optimizer may change a parameter; a frozen one may have a gradient all the same (see
    `freeze`)."""
    return parameter.grad_req != "null" and parameter.lr_mult != 0


def require_trained(network: gluon.Block, patterns: Sequence[str]) -> None:
    """Checks that a network has something to train: MXNet has no backward pass of a loss without gradients.

    Args:
        network: initialised network in which parameters are frozen.
        patterns: `model.freeze`.

    Raises:
        ConfigError: no parameter is trained.
    """
    parameters = network._collect_params_with_prefix()
    if any(is_trained(parameter) for parameter in parameters.values()):
        return
    if not parameters:
        raise ConfigError("model: the network has no parameters, so there is nothing to train.")
    if patterns:
        raise ConfigError(
            f"model.freeze=[{','.join(patterns)}] freezes all {len(parameters)} parameters, so there is nothing to "
            f"train. Leave out at least those of the last layer, such as '{list(parameters)[-1]}'."
        )
    raise ConfigError(
        "model: all parameters of the network have grad_req='null' or lr_mult=0, so there is nothing to train. Set "
        f"grad_req='write' for at least one, such as '{list(parameters)[-1]}'."
    )


def parameter_multipliers(model: Model, network: gluon.Block) -> Dict[str, Tuple[float, float]]:
    """Returns the (lr_mult, wd_mult) of every parameter by structural name.

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


def _matching(pattern: str, names: Iterable[str], key: str) -> List[str]:
    names = list(names)
    matches = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matches:
        near = nearest(pattern.replace("*", ""), names, 3) or names[-2:]
        raise ConfigError(
            f"{key}: the pattern '{pattern}' matches no parameter of the network. Names are like "
            f"{', '.join(near)}; '*' matches any text, e.g. '{near[0].split('.')[0]}.*'."
        )
    return matches
