"""Tables that translate the parameter names of networks of PyTorch's libraries, and convert their arrays.

A family is one module of `families/` with a constant `FAMILY`; nothing else names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

Arrays = Dict[str, "np.ndarray"]
Config = Mapping[str, Any]
"""config.json beside the file; empty if there is none."""
Name = Union[str, Callable[..., str]]
"""Name in our network: a format string of the pattern's groups, or a function of them; digits are integers."""

NORM_ROLES = {
    "weight": "gamma",
    "bias": "beta",
    "gamma": "gamma",
    "beta": "beta",
    "running_mean": "running_mean",
    "running_var": "running_var",
}
"""Last part of a norm's parameter in PyTorch -> in MXNet. Checkpoints of TensorFlow's time have gamma and beta."""


class DoesNotFit(Exception):
    """Our network does not compute what that of the file does. The message is a sentence with what to type."""


def as_saved(array: np.ndarray) -> np.ndarray:
    """Returns an array unchanged."""
    return array


def transposed(array: np.ndarray) -> np.ndarray:
    """Returns a matrix transposed, in C order."""
    import numpy as np

    return np.ascontiguousarray(array.T)


class Rule(NamedTuple):
    """One line of a table.

    Attributes:
        pattern: regular expression for the whole name in the file.
        ours: name in our network; empty if our network has no such parameter because it computes it.
        convert: conversion of the array.
        beside: another parameter that the layer must have for the rule to apply, e.g. running_mean, which tells a batch
            norm from a convolution of the same name; empty: none.
    """

    pattern: str
    ours: Name
    convert: Callable[[np.ndarray], np.ndarray] = as_saved
    beside: str = ""

    def match(self, name: str, names: Collection[str]) -> Optional[str]:
        """Returns the name in our network for a parameter of a file; None if the rule does not apply to it.

        Args:
            name: name of the parameter in the file.
            names: names of all parameters of the file.
        """
        match = re.fullmatch(self.pattern, name)
        if match is None or self.beside and f"{name.rpartition('.')[0]}.{self.beside}" not in names:
            return None
        groups = [int(group) if group and group.isdigit() else group for group in match.groups()]
        return self.ours.format(*groups) if isinstance(self.ours, str) else self.ours(*groups)


def layer(pattern: str, ours: Name, convert: Callable[[np.ndarray], np.ndarray] = as_saved) -> Tuple[Rule, Rule]:
    """Returns the rules for weight and bias of a convolution or dense layer.

    Args:
        pattern: regular expression for the name of the layer in the file.
        ours: name of the layer in our network.
        convert: conversion of the weight.
    """
    weight, bias = (_append(ours, f".{role}") for role in ("weight", "bias"))
    return Rule(rf"{pattern}\.weight", weight, convert), Rule(rf"{pattern}\.bias", bias)


def norm(pattern: str, ours: Name, beside: str = "") -> Tuple[Rule, ...]:
    """Returns the rules for a layer norm."""
    return tuple(
        Rule(rf"{pattern}\.{role}", _append(ours, f".{own}"), beside=beside) for role, own in NORM_ROLES.items()
    )


def batch_norm(pattern: str, ours: Name) -> Tuple[Rule, ...]:
    """Returns the rules for a batch norm, which may be numbered like convolutions; its count of batches is dropped."""
    return (*norm(pattern, ours, "running_mean"), Rule(rf"{pattern}\.num_batches_tracked", ""))


def _append(ours: Name, end: str) -> Name:
    if isinstance(ours, str):
        return ours + end
    function = ours
    return lambda *groups: function(*groups) + end


def rules(*lines: Union[Rule, Sequence[Rule]]) -> Sequence[Rule]:
    """Joins rules and groups of rules to one table; the first rule that fits counts."""
    table: List[Rule] = []
    for line in lines:
        table += [line] if isinstance(line, Rule) else line
    return tuple(table)


def count_units(arrays: Mapping[str, np.ndarray], stage: str) -> Tuple[int, ...]:
    """Returns the numbers of units in stages 1 to 4.

    Args:
        arrays: the arrays of the file.
        stage: beginning of the names in a stage, with its number as {0}; the number of the unit follows.
    """
    begins = [stage.format(number) for number in range(1, 5)]
    return tuple(len({name[len(b) :].split(".")[0] for name in arrays if name.startswith(b)}) for b in begins)


SIZES_OF_TIMM = ("num_classes", "in_chans", "img_size")
"""Arguments of timm's networks that follow from the shapes of their arrays, or that change no array."""


def require_architecture(config: Config, known: str, advice: str = "") -> str:
    """Checks the architecture and its arguments in config.json, as timm writes them.

    Args:
        config: see `Config`.
        known: regular expression for the architectures that compute what our networks do.
        advice: further sentence for the error, with a blank before it.

    Returns:
        The architecture; empty if it is not named.

    Raises:
        DoesNotFit: it is another one, or has arguments that change what it computes.
    """
    name = str(config.get("architecture", ""))
    arguments = config.get("model_args")
    for key, value in arguments.items() if isinstance(arguments, dict) else ():
        if key not in SIZES_OF_TIMM and (key, value) != ("global_pool", "avg"):
            raise DoesNotFit(f"config.json says model_args.{key}={value}, with which timm computes something else.")
    if name and not re.fullmatch(known, name):
        raise DoesNotFit(
            f"config.json says architecture={name}, which computes more than the names of its arrays tell.{advice}"
        )
    return name


def nothing_to_add(arrays: Arrays, network: Mapping[str, Tuple[int, ...]]) -> None:
    """Leaves the arrays as they are."""


def nothing_to_check(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    """Has no remarks."""
    return []


@dataclass(frozen=True)
class FamilyTable:
    """Names of a foreign network in one of our networks.

    Attributes:
        network: our networks in words, for messages.
        rules: the names.
        complete: function of the arrays under our names and the shapes of our network; adds arrays that the file needs
            not have.
        check: function of the arrays of the file, our network and config.json; raises `DoesNotFit` if the network
            computes something else, and returns remarks.
    """

    network: str
    rules: Sequence[Rule]
    complete: Callable[[Arrays, Mapping[str, Tuple[int, ...]]], None] = nothing_to_add
    check: Callable[[Mapping[str, np.ndarray], gluon.Block, Config], List[str]] = nothing_to_check


@dataclass(frozen=True)
class Family:
    """Foreign networks whose parameters have the same names.

    Attributes:
        name: the networks in words, for messages.
        mark: regular expression for a name that only files of this family have.
        tables: one table for each kind of our networks that can take the weights.
        settings: function of the arrays of the file and config.json; returns the overrides that build our network,
            empty if we have none with these layers.
        reason: sentence that says why no network of ours computes the same, for families without tables.
        prefixes: beginnings of names in files of networks that contain this one, such as "bert.".
        heads: regular expressions for layers of the file that depend on what it was trained for; they may be missing
            in our network.
        own_heads: the same for layers of our networks, which may be missing in the file.
        model_types: `model_type` in config.json, for families whose names are the same.
        looks_like: function of the arrays of a file without config.json; tells such families apart.
        task_heads: task type of PEFT -> layers with parameters of the head of transformers' class, if ours computes
            the same; a missing task type: ours has another head.
    """

    name: str
    mark: str
    tables: Sequence[FamilyTable]
    settings: Callable[[Mapping[str, np.ndarray], Config], str] = lambda arrays, config: ""
    reason: str = ""
    prefixes: Sequence[str] = ()
    heads: str = ""
    own_heads: str = ""
    model_types: Sequence[str] = ()
    looks_like: Callable[[Mapping[str, np.ndarray]], bool] = lambda arrays: True
    task_heads: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def without_prefix(self, names: Iterable[str]) -> Dict[str, str]:
        """Returns name without prefix -> name in the file."""
        pattern = "|".join(re.escape(prefix) for prefix in ("module.", "model.", *self.prefixes))
        return {re.sub(rf"^(?:{pattern})+", "", name): name for name in names}

    def share_of_known(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Returns the share of arrays that a table of the family names."""
        lines = {line.pattern for table in self.tables for line in table.rules}
        lines |= {self.heads} if self.heads else set()
        known = re.compile("|".join(f"(?:{pattern})" for pattern in sorted(lines)))
        return sum(known.fullmatch(name) is not None for name in self.without_prefix(arrays)) / max(len(arrays), 1)

    def is_marked(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Returns True if the file has a name that only files of this family have."""
        return any(re.fullmatch(self.mark, name) for name in self.without_prefix(arrays))
