"""Recognises the family of a weights file by its names, and renames and converts its arrays for our network."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxtrain.errors import WeightsError
from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.files.regular_files import MAX_TEXT_BYTES, read_regular
from mxtrain.model.foreign import families
from mxtrain.model.foreign.safetensors_file import read_safetensors
from mxtrain.model.foreign.table import Config, DoesNotFit, Family, FamilyTable, Rule

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

CONFIG = "config.json"
"""File beside the weights that describes their network."""
NAMES = "names.json"
"""File beside weights that `mxtrain export RUN for=safetensors` wrote: our name -> name in the file."""
MAX_NAMES = 4
NO_NETWORK = "No network of Gluon, GluonCV or mxtrain has the layers of the file."


@dataclass(frozen=True)
class Imported:
    """Weights under the names of our network.

    Attributes:
        arrays: name in our network -> converted array.
        names: name in our network -> name in the file; empty if they are the same.
        family: family of the file; None if its names are not translated.
        unused: names in the file that no table gives a place in our network.
        dropped: names in the file that our network needs no array for.
        remarks: findings for the report.
        hint: further sentence, after a space, for errors of names and shapes.
    """

    arrays: Mapping[str, np.ndarray]
    names: Mapping[str, str] = field(default_factory=dict)
    family: Optional[Family] = None
    unused: Sequence[str] = ()
    dropped: Sequence[str] = ()
    remarks: Sequence[str] = field(default_factory=tuple)
    hint: str = ""

    def require_whole(self, path: Union[str, Path], left: Collection[str], unused: Collection[str]) -> None:
        """Checks that the file and our network differ in their heads only.

        Args:
            path: path of the file.
            left: parameters of our network that are not in the file.
            unused: arrays, under our names if they have one, that our network does not have.

        Raises:
            WeightsError: other arrays are in one of them alone, so that the network would compute something else.
        """
        if self.family is None:
            return
        own_heads = re.compile(rf"(.*\.)?({self.family.own_heads})")
        unused_in_file = self.family.without_prefix(self.names.get(name, name) for name in unused)
        missing = [name for name in left if not own_heads.fullmatch(name)]
        surplus = [name for plain, name in unused_in_file.items() if not re.fullmatch(self.family.heads, plain)]
        for names, problem in (
            (missing, "the network needs, and are not in the file"),
            (surplus, "are in the file, and have no place in the network"),
        ):
            if names:
                raise WeightsError(
                    f"The weights file {path} is of {self.family.name}, and does not fit the network: {len(names)} "
                    f"arrays {problem}, such as {', '.join(names[:MAX_NAMES])}.{self.hint}"
                )


@functools.cache
def known_families() -> Tuple[Family, ...]:
    """Returns the families of all modules in `families/`."""
    modules = sorted(module.name for module in pkgutil.iter_modules(families.__path__))
    return tuple(importlib.import_module(f"{families.__name__}.{name}").FAMILY for name in modules)


def read_config(path: Union[str, Path], name: str = CONFIG) -> Config:
    """Returns config.json, or a file of another name, beside a weights file; empty if there is none.

    Raises:
        WeightsError: it is damaged.
    """
    beside = Path(path).with_name(name)
    try:
        config = parse_json(read_regular(beside, MAX_TEXT_BYTES), allow_nan=True)
    except FileNotFoundError:
        return {}
    except (OSError, JsonTextError) as error:
        raise WeightsError(f"{beside}, which describes the weights, cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{beside}, which describes the weights, holds no object.")
    return config


def family_of(arrays: Mapping[str, np.ndarray], config: Config) -> Optional[Family]:
    """Returns the family whose tables name most of the arrays; None if none has a name that is its alone."""
    marked = [family for family in known_families() if family.is_marked(arrays)]
    model_type = config.get("model_type")
    alike = [family for family in marked if model_type in family.model_types] or [
        family for family in marked if family.looks_like(_without_prefixes(family, arrays))
    ]
    return max(alike or marked, key=lambda family: family.share_of_known(arrays), default=None)


def nearest_family(arrays: Mapping[str, np.ndarray]) -> Family:
    """Returns the family that names most of the arrays, be it few."""
    return max(known_families(), key=lambda family: family.share_of_known(arrays))


def import_foreign(path: Union[str, Path], network: gluon.Block) -> Imported:
    """Reads a safetensors file for a network of ours.

    Args:
        path: see `read_safetensors`.
        network: initialised block with known shapes.

    Returns:
        The arrays under our names; those of no known family under their own, or those of names.json.

    Raises:
        WeightsError: the file is damaged, or the network computes something else than that of the file.
    """
    arrays, config, names = read_safetensors(path), read_config(path), read_config(path, NAMES)
    if names and all(isinstance(name, str) and name in arrays for name in names.values()):
        return Imported({ours: arrays[name] for ours, name in names.items()})
    family = family_of(arrays, config)
    if family is None:
        return Imported(arrays, hint=_unknown_family_hint(arrays))
    if not family.tables:
        raise WeightsError(f"The weights file {path} is of {family.name}, and cannot be used. {family.reason}")
    shapes = {name: tuple(parameter.shape) for name, parameter in network._collect_params_with_prefix().items()}
    translated, table = translate(family, arrays, shapes)
    plain = _without_prefixes(family, arrays)
    settings = family.settings(plain, config)
    hint = f" The network of the file is {settings}." if settings else f" {NO_NETWORK}"
    if not any(name in shapes for name in translated.arrays):
        others = "; ".join(table.network for table in family.tables)
        raise WeightsError(
            f"The weights file {path} is of {family.name}, and the network is none that takes them ({others}).{hint}"
        )
    try:
        remarks = table.check(plain, network, config)
    except DoesNotFit as error:
        raise WeightsError(f"The weights file {path} does not fit the network: {error}") from error
    table.complete(translated.arrays, shapes)
    return Imported(
        arrays=translated.arrays,
        names=translated.names,
        family=family,
        unused=[name for name in arrays if name not in translated.known],
        dropped=translated.dropped,
        remarks=[f"of {family.name}, names translated for {table.network}", *remarks],
        hint=hint,
    )


def describe(path: Union[str, Path], arrays: Mapping[str, np.ndarray]) -> Tuple[str, str, List[str]]:
    """Returns the family of a file in words, the overrides for a network that takes it, and remarks.

    Raises:
        WeightsError: config.json beside it is damaged.
    """
    config = read_config(path)
    family = family_of(arrays, config)
    if family is None:
        return "", "model=OPTION", [f"{_unknown_family_hint(arrays)} If its names are ours, name its network.".strip()]
    if not family.tables:
        return family.name, "", [family.reason]
    settings = family.settings(_without_prefixes(family, arrays), config)
    tables = [_translate(family, table, arrays, {}) for table in family.tables]
    known = {name for translated in tables for name in translated.known}
    unknown = [name for name in arrays if name not in known]
    remarks = [] if config else [f"No {CONFIG} is beside it, so what names do not tell is not compared."]
    if not settings:
        remarks.append(NO_NETWORK)
    if unknown:
        remarks.append(f"{len(unknown)} arrays have no place in our network, such as '{unknown[0]}'.")
    return family.name, settings, remarks


def _without_prefixes(family: Family, arrays: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Returns the arrays by their names in the file without prefixes, see `Family.without_prefix`."""
    return {plain: arrays[name] for plain, name in family.without_prefix(arrays).items()}


class Translated(NamedTuple):
    """The arrays of a file under our names.

    Attributes:
        arrays: name in our network -> converted array.
        names: name in our network -> name in the file.
        dropped: names in the file that our network needs no array for.
    """

    arrays: Dict[str, np.ndarray]
    names: Dict[str, str]
    dropped: List[str]

    @property
    def known(self) -> Set[str]:
        """Returns the names in the file that the table knows."""
        return {*self.names.values(), *self.dropped}


def translate(
    family: Family, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Tuple[int, ...]]
) -> Tuple[Translated, FamilyTable]:
    """Translates the names of a file by the table whose names the network has; a file for another network has none.

    Args:
        family: family of the file, with tables.
        arrays: arrays of the file.
        shapes: shapes of the parameters of our network by name.
    """
    candidates = [(_translate(family, table, arrays, shapes), table) for table in family.tables]
    return max(candidates, key=lambda candidate: sum(name in shapes for name in candidate[0].arrays))


def _translate(
    family: Family, table: FamilyTable, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Tuple[int, ...]]
) -> Translated:
    """Translates the names of a file by a table. Names without a rule are left out.

    Args:
        family: family of the file.
        table: table of the family.
        arrays: arrays of the file.
        shapes: shapes of the parameters of our network by name; empty if there is no network.
    """
    placed = place_names(family, table, arrays, shapes)
    renamed = {one.ours: one.rule.convert(arrays[name]) for name, one in placed.items() if one.ours}
    names = {one.ours: name for name, one in placed.items() if one.ours}
    return Translated(renamed, names, [name for name, one in placed.items() if not one.ours])


class Placed(NamedTuple):
    """Place of a parameter of a file in our network.

    Attributes:
        ours: name in our network; empty if our network needs no array for it.
        rule: the rule of the table that names it.
    """

    ours: str
    rule: Rule


def place_names(family: Family, table: FamilyTable, names: Collection[str], ours: Collection[str]) -> Dict[str, Placed]:
    """Returns the places of the parameters of a file by their names in it. Names without a rule are left out.

    Args:
        family: family of the file.
        table: table of the family.
        names: names of all parameters of the file.
        ours: names of the parameters of our network; empty if there is no network.
    """
    found: Dict[str, Placed] = {}
    plain_names = family.without_prefix(names)
    for plain, name in plain_names.items():
        for rule in table.rules:
            own = rule.match(plain, plain_names)
            if own is not None:
                found[name] = Placed(own, rule)
                break
    # The network of the table may be a part of ours, as `bert.` is of a classifier, whose head is beside it.
    parts = ["", *sorted({name.split(".")[0] + "." for name in ours})]
    inner = [one.ours for one in found.values() if one.ours not in ours]
    part = max(parts, key=lambda prefix: sum(prefix + name in ours for name in inner))
    return {
        name: Placed(part + one.ours, one.rule) if one.ours not in ours and part + one.ours in ours else one
        for name, one in found.items()
    }


def _unknown_family_hint(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns sentences on the known families and the nearest one, with a blank before them."""
    nearest = nearest_family(arrays)
    share = nearest.share_of_known(arrays)
    near = f" The nearest is {nearest.name}, which has {share:.0%} of its names." if share else ""
    known = "; ".join(family.name for family in known_families())
    return f" It is not of an architecture whose names can be translated ({known}).{near}"
