"""Rejects untrusted code in a description that comes from a file (docs/decisions/0020-checkpoint-trust.md).

Checkpoints, meta.json, replay bundles and studies may come from somebody else. Their descriptions name classes by
import path, environment variables, programs and addresses. All of these are checked before any is imported, set or
opened.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Collection, Dict, Iterator, Mapping, Optional, Sequence, Set, Tuple

import yaml

import mxtrain
from mxtrain.cluster.spec import Cluster
from mxtrain.config.groups import GROUPS, NAMED_GROUPS
from mxtrain.config.locations import conf_dir
from mxtrain.config.moved import current_path
from mxtrain.config.placeholders import PLACEHOLDERS
from mxtrain.config.plugins import plugin_of
from mxtrain.errors import ConfigError, raise_interruption
from mxtrain.files.regular_files import read_regular_text
from mxtrain.files.text_lines import printable_line
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config

PACKAGE = Path(mxtrain.__file__).parent
TARGET = "_target_"
INTERPOLATION = "${"
"""Start of an OmegaConf interpolation, which may read the environment; a resolved description has none."""
TUNING = re.compile(r"(MXNET|OMP|GOMP|KMP|MKL|OPENBLAS|DNNL|ONEDNN|NCCL|CUDA)_[A-Z0-9_]+")
"""Names of environment variables that choose how to compute."""
LEADS_TO_FILES = re.compile(r"LIB|PATH|DIR|FILE|HOME|TOOL|PLUGIN|CONF|REPO|ROOT|LOG|DUMP")
"""Words in the name of a variable that may choose a library to load or a file to write: such variables are rejected."""
WITHOUT_FILE = {
    *PLACEHOLDERS.values(),
    "mxtrain.callback.spec.GivenAction",
    "mxtrain.task.custom_loop.CustomLoop",
}
"""Placeholders for Python objects, and the task of custom loops, which no YAML file names."""
STARTS_PROGRAMS = ("launcher", "hostfile", "python", "directory", "launcher_options", "environment", "interface")
"""Settings of the group `cluster` that name hosts, programs or their arguments; only default values are trusted."""
ADDRESSES: Dict[str, Tuple[Optional[str], ...]] = {"uri": (None,)}
"""Settings of loggers that choose where a tracker connects or writes -> values that leave the choice to the user."""
PLAIN_WORD = re.compile(r"[A-Za-z0-9_.,:-]*")
MAX_SHOWN = 120
"""Characters of a value that a message shows."""


def require_trusted(
    config: Config, path: str, command: str, overridden: Sequence[str], config_dirs: Sequence[str], remedy: str = ""
) -> None:
    """Rejects a description that would run code of its author. Imports only modules of mxtrain and of plug-ins.

    Args:
        config: configuration from the file, or a part of it, without this command's overrides.
        path: path of the file.
        command: command that reads it, for the message.
        overridden: settings and groups that this command's overrides replace, including everything nested below them.
        config_dirs: folders of the user (`--config-dir`). Classes that their YAML files name are trusted.
        remedy: sentence with the remedy if the code is trusted; by default it names the flags of the command.

    Raises:
        ConfigError: the description names code that is not mxtrain's; the message lists all of it.
    """
    trusted = named_targets(config_dirs)
    foreign = {
        setting: value
        for setting, value in foreign_targets(config)
        if not (_is_below(setting, overridden) or _is_target(setting, value, trusted))
    }
    if not foreign:
        return
    lines = "\n".join(f"  {setting}={printable_line(str(value), MAX_SHOWN)}" for setting, value in foreign.items())
    if remedy:
        raise ConfigError(
            f"the description in {path} names code, or ways to it, that are not mxtrain's own:\n{lines}\n{remedy}."
        )
    note = f"; {shlex.quote(config_dirs[0])} names none of these" if config_dirs else ""
    raise ConfigError(
        f"the description in {path} names code, or ways to it, that are not mxtrain's own:\n{lines}\n"
        f"`{command}` runs such code only if you say that you trust it: add --trust-code for all of it, or --config-dir"
        f" FOLDER whose YAML names the class (the one that the run was given{note}){_override_hint(foreign)}."
        f"{_plugin_hint(foreign)}"
    )


def foreign_targets(config: Config) -> Iterator[Tuple[str, object]]:
    """Yields (dotted path, value) of each value that leads to code other than mxtrain's, to the environment, or to an
    output file or server that its author chose."""
    for setting, value in _leaves(config, ""):
        group, _, rest = setting.partition(".")
        if setting.rpartition(".")[2] == TARGET:
            if is_of_plugin(str(value)):
                continue
            depth = 2 if group in NAMED_GROUPS else 1
            if setting.count(".") != depth or not is_own(str(value), group):
                yield setting, value
        elif isinstance(value, str) and INTERPOLATION in value:
            yield setting, value
        elif group == "runtime" and rest.startswith("env.") and not _only_tunes(rest[len("env.") :], value):
            yield setting, value
        elif _starts_program(group, rest, value) or (group == "logger" and _writes_elsewhere(rest, value)):
            yield setting, value


def is_own(target: str, group: str) -> bool:
    """Returns True if an import path names one of mxtrain's own specs of this group, or nothing that exists.

    Only modules that files in `conf/GROUP/` name are imported for this check. Other objects that are reachable through
    such a module (`mxtrain.model.custom.Any`) are rejected, because they are defined outside of mxtrain or are no spec
    of the group.
    """
    base = GROUPS.get(group)
    # An old path leads to today's class, so it is judged by that.
    target = current_path(target)
    module_name, _, name = target.rpartition(".")
    if base is None or not re.fullmatch(r"mxtrain(\.\w+)+", target, re.ASCII):
        return False
    # Importing a module runs its code, so only those that our own YAML files name are imported for the judgement.
    if module_name not in modules_of(group) and target not in WITHOUT_FILE:
        return not _is_module(module_name)  # a missing module is harmless; validation suggests the nearest name
    attribute = getattr(importlib.import_module(module_name), name, None)
    if attribute is None:
        return True
    is_spec = isinstance(attribute, type) and issubclass(attribute, Spec)
    return is_spec and issubclass(attribute, base) and attribute.__module__.startswith("mxtrain.")


def is_of_plugin(target: str) -> bool:
    """Returns True if an import path names a class that a plug-in's YAML files name, or one of its own specs.

    For the latter, the module of the plug-in is imported. Functions, other classes and what it imports from elsewhere
    are rejected unless its YAML files name them: a file could call them with any arguments.
    """
    plugin = plugin_of(target)
    if plugin is None:
        return False
    if target in named_targets([str(plugin.conf)]):
        return True
    module_name, _, name = target.rpartition(".")
    try:
        attribute = getattr(importlib.import_module(module_name), name, None)
    except Exception as error:  # whatever the code of the plug-in raises
        raise_interruption(error)
        return False
    is_spec = isinstance(attribute, type) and issubclass(attribute, Spec)
    return is_spec and f"{attribute.__module__}.".startswith(f"{plugin.module}.")


@functools.cache
def modules_of(group: str) -> Set[str]:
    """Returns the modules of all classes that mxtrain's own YAML files of a group name, or those of tasks."""
    files = (file for folder in {group, "task"} for file in (conf_dir() / folder).glob("*.yaml"))
    contents = (file.read_text(encoding="utf-8") for file in files)
    return {module for content in contents for module in re.findall(r"_target_: (mxtrain(?:\.\w+)*)\.\w+", content)}


def _is_module(name: str) -> bool:
    """Returns True if mxtrain has a module or package of this name. Imports nothing."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def named_targets(config_dirs: Sequence[str]) -> Set[str]:
    """Returns the import paths of all classes that the YAML files of these folders name."""
    targets: Set[str] = set()
    for folder in config_dirs:
        for file in sorted(Path(folder).rglob("*.yaml")):
            try:
                content = yaml.safe_load(read_regular_text(file))
            except (OSError, ValueError, yaml.YAMLError):
                continue  # choosing this option reports the error
            leaves = _leaves(content, "")
            named = (str(value) for setting, value in leaves if setting.rpartition(".")[2] == TARGET)
            targets.update(map(current_path, named))
    return targets


def _leaves(value: object, path: str) -> Iterator[Tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            # A key "a.b" must not pass for the path of a setting that the user has overridden.
            part = str(key).replace(".", "\\.")
            name = f"{path}.{part}" if path else part
            if INTERPOLATION in str(key):
                yield name, item
            # The value of a setting with such a name is always treated as a path.
            if key == TARGET and not isinstance(item, str):
                yield name, str(item)
            else:
                yield from _leaves(item, name)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}.{number}")
    else:
        yield path, value


def _is_below(setting: str, overridden: Sequence[str]) -> bool:
    return any(setting == key or setting.startswith(key + ".") for key in overridden)


def _is_target(setting: str, value: object, named: Set[str]) -> bool:
    return setting.rpartition(".")[2] == TARGET and current_path(str(value)) in named


def _starts_program(group: str, setting: str, value: object) -> bool:
    name = setting.partition(".")[0]
    if group == "cluster":
        return name in STARTS_PROGRAMS and value != getattr(Cluster(), name)
    return (group, name) == ("distillation", "trust_code") and value is not False


def _writes_elsewhere(setting: str, value: object) -> bool:
    """Returns True if the setting of a logger is a file outside of the run directory, or the address of a tracker."""
    name = setting.rpartition(".")[2]
    # An address of a tracker would receive the keys of whoever runs the description.
    return value not in ADDRESSES.get(name, (value,)) or (name == "file_name" and os.sep in str(value))


def _only_tunes(name: str, value: object) -> bool:
    # CXX, PATH, LD_PRELOAD or MXNET_LIBRARY_PATH lead to code as surely as a class does.
    tunes = TUNING.fullmatch(name) is not None and LEADS_TO_FILES.search(name) is None
    return tunes and PLAIN_WORD.fullmatch(str(value)) is not None


def _plugin_hint(foreign: Mapping[str, object]) -> str:
    """Returns a hint for classes whose package is not installed, as after a plug-in was removed."""
    targets = (str(value) for setting, value in foreign.items() if setting.rpartition(".")[2] == TARGET)
    missing = [name for name in dict.fromkeys(target.partition(".")[0] for target in targets) if _is_missing(name)]
    if not missing:
        return ""
    return f" If they belong to a plug-in, install its package: {', '.join(missing)} is not installed here."


def _is_missing(name: str) -> bool:
    try:
        return name.isidentifier() and importlib.util.find_spec(name) is None and not _is_module_here(name)
    except (ImportError, ValueError):
        return False


def _is_module_here(name: str) -> bool:
    return os.path.isdir(name) or os.path.exists(f"{name}.py")


def _override_hint(foreign: Collection[str]) -> str:
    """Returns a hint with the override to type instead, if that suffices."""
    if not all(re.fullmatch(r"(model|dataset)\._target_", setting) for setting in foreign):
        return ""
    classes = " ".join(f"{setting}=package.Class" for setting in foreign)
    return f", or type what you know to be meant: {classes}"
