"""Refuses code that a checkpoint names and nobody trusts: docs/decisions/0020-code-of-a-checkpoint.md.

A checkpoint may be somebody else's. Its description names classes by import path and environment variables by name, so
it is judged before anything that it names is imported or set.
"""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Collection, Iterator, Mapping, Sequence, Set, Tuple

import yaml

from mxtrain.description.groups import GROUPS, NAMED_GROUPS
from mxtrain.errors import ConfigError
from mxtrain.files.regular_files import read_regular_text
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.annotations import Config

TARGET = "_target_"
INTERPOLATION = "${"
"""How an interpolation of OmegaConf begins, which may read the environment; a resolved description holds none."""
TUNING = re.compile(r"(MXNET|OMP|GOMP|KMP|MKL|OPENBLAS|DNNL|ONEDNN|NCCL|CUDA)_[A-Z0-9_]+")
"""Environment variables that say how to compute."""
LEADS_TO_FILES = re.compile(r"LIB|PATH|DIR|FILE|HOME|TOOL|PLUGIN|CONF|REPO|ROOT|LOG|DUMP")
"""Words in such a name by which it may choose a library to load or a place to write: not accepted."""
PLAIN_WORD = re.compile(r"[A-Za-z0-9_.,:-]*")


def require_trusted(
    config: Config, path: str, command: str, typed: Sequence[str], config_dirs: Sequence[str]
) -> None:  # fmt: skip
    """Refuses a description that would run code of its author's. Imports nothing but mxtrain's own modules.

    Args:
        config: from a checkpoint, without this command's overrides.
        path: of the checkpoint.
        command: that reads it, for the message.
        typed: settings and groups that this command's overrides replace, with all that stands below them.
        config_dirs: folders of the user's (`--config-dir`): whatever class their YAML names is the user's, too.

    Raises:
        ConfigError: naming all that is not mxtrain's own.
    """
    named = named_targets(config_dirs)
    found = {
        place: value
        for place, value in foreign(config)
        if not (_is_below(place, typed) or _is_target(place, value, named))
    }
    if not found:
        return
    lines = "\n".join(f"  {place}={_shown(value)}" for place, value in found.items())
    given = f"; {shlex.quote(config_dirs[0])} names none of these" if config_dirs else ""
    raise ConfigError(
        f"the description in {path} names code, or ways to it, that are not mxtrain's own:\n{lines}\n"
        f"`{command}` runs such code only if you say that you trust it: add --trust-code for all of it, or --config-dir"
        f" FOLDER whose YAML names the class (the one that the run was given{given}){_typed_again(found)}."
    )


def foreign(config: Config) -> Iterator[Tuple[str, object]]:
    """(dotted path, value) of all in a description that leads to code other than mxtrain's, or to the environment."""
    for place, value in _leaves(config, ""):
        group, _, rest = place.partition(".")
        if place.rpartition(".")[2] == TARGET:
            depth = 2 if group in NAMED_GROUPS else 1
            if place.count(".") != depth or not is_own(str(value), group):
                yield place, value
        elif isinstance(value, str) and INTERPOLATION in value:
            yield place, value
        elif group == "runtime" and rest.startswith("env.") and not _only_tunes(rest[len("env.") :], value):
            yield place, value


def is_own(target: str, group: str) -> bool:
    """Whether an import path names one of mxtrain's own specs of this group, or nothing that exists.

    The module must lie in the group's own package, so that nothing else is imported to find out; what else can be
    reached through such a module (`mxtrain.model.base.Any`) was not defined there.
    """
    base = GROUPS.get(group)
    package = f"{__package__.partition('.')[0]}.{group}"
    module_name, _, name = target.rpartition(".")
    if base is None or not _is_within(module_name, package) or not re.fullmatch(r"[A-Za-z0-9_.]+", target):
        return False
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError):
        return True  # there is no such thing, which the validation says with the nearest names
    is_spec = isinstance(found, type) and issubclass(found, Spec)
    return is_spec and issubclass(found, base) and _is_within(found.__module__, package)


def named_targets(config_dirs: Sequence[str]) -> Set[str]:
    """All classes that the YAML files of these folders name."""
    found: Set[str] = set()
    for folder in config_dirs:
        for file in sorted(Path(folder).rglob("*.yaml")):
            try:
                content = yaml.safe_load(read_regular_text(file))
            except (OSError, ValueError, yaml.YAMLError):
                continue  # it names nothing; who chooses this option is told why
            found.update(str(value) for place, value in _leaves(content, "") if place.rpartition(".")[2] == TARGET)
    return found


def _leaves(value: object, place: str) -> Iterator[Tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            part = str(key).replace(".", "\\.")  # a key that only looks like a path is not what the user typed
            name = f"{place}.{part}" if place else part
            if INTERPOLATION in str(key):
                yield name, item
            # What stands under a name of this form is a path whatever it is.
            if key == TARGET and not isinstance(item, str):
                yield name, str(item)
            else:
                yield from _leaves(item, name)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{place}.{number}")
    else:
        yield place, value


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _is_below(place: str, typed: Sequence[str]) -> bool:
    return any(place == key or place.startswith(key + ".") for key in typed)


def _is_target(place: str, value: object, named: Set[str]) -> bool:
    return place.rpartition(".")[2] == TARGET and str(value) in named


def _only_tunes(name: str, value: object) -> bool:
    tunes = TUNING.fullmatch(name) is not None and LEADS_TO_FILES.search(name) is None
    return tunes and PLAIN_WORD.fullmatch(str(value)) is not None


def _shown(value: object) -> str:
    """A stranger's text on one line, shortened where it is long."""
    text = "".join(letter if letter.isprintable() else "?" for letter in str(value))
    return text if len(text) <= 120 else text[:117] + "..."


def _typed_again(found: Collection[str]) -> str:
    """A hint at what can be typed instead, where that is all that is needed."""
    if not all(re.fullmatch(r"(model|dataset)\._target_", place) for place in found):
        return ""
    classes = " ".join(f"{place}=package.Class" for place in found)
    return f", or type what you know to be meant: {classes}"
