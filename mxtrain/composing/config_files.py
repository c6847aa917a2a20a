"""Finds the files, groups and options of the configuration, those of mxtrain, plug-ins and the user, with Hydra."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import threading
import uuid
from importlib.abc import InspectLoader
from pathlib import Path
from typing import Any, Collection, Dict, Iterator, List, Optional, Sequence, Tuple, Type, Union

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict
from typing_extensions import Self

from mxtrain.archive.score import SCORE
from mxtrain.composing import prepared
from mxtrain.composing.hydra_errors import first_line, malformed
from mxtrain.composing.hydra_settings import is_folder
from mxtrain.composing.yaml_numbers import OtherBase, refused_in_files
from mxtrain.config.groups import GROUPS
from mxtrain.config.options import remember_folders
from mxtrain.config.override_text import expand_home, quote_pairs
from mxtrain.config.plugins import conf_dirs, require_usable_plugins
from mxtrain.config.search_path import current_folder
from mxtrain.config.specs import default_settings, import_target, own_spec
from mxtrain.errors import ConfigError, raise_interruption
from mxtrain.model.spec import Model
from mxtrain.types import Spec

CONFIG_NAME = "config"
MAX_FOLDER_NAME = 120
FIRST_JOB = "MXTRAIN_SWEEP_FIRST_JOB"
"""Offset of the numbers of a sweep's new jobs, for the processes of a launcher."""
COMPOSING = threading.RLock()
"""Held while Hydra's code runs: its resolvers, plugins and the caches of its parser are shared by all threads."""


def register_resolvers() -> None:
    """Registers resolvers for interpolations: `unique_suffix` keeps two runs that start in the same second apart."""
    OmegaConf.register_new_resolver("unique_suffix", lambda: uuid.uuid4().hex[:4], use_cache=True, replace=True)
    OmegaConf.register_new_resolver("job_folder", job_folder, replace=True)


def job_folder(number: Union[int, str], swept: str, sweep_dir: str = "") -> str:
    """Returns the folder name of a sweep's job, e.g. `0_model-lenet_optimizer.lr-0.1`. TensorBoard shows it, too.

    It contains only characters that need no quotes: a name with `=` or commas would be read as an override or a sweep.

    Args:
        number: number of the job in this command.
        swept: overrides in which the jobs differ.
        sweep_dir: folder of the sweep. If an earlier command ran the same job there, its folder is returned.
    """
    if sweep_dir:
        name = job_folder("", swept)
        # A job whose sweep is started again continues in the same folder.
        for path in sorted(Path(sweep_dir).glob("*_*" if swept else "*")):
            if re.fullmatch(r"\d+" + re.escape(name), path.name):
                return path.name
        number = int(number) + int(os.environ.get(FIRST_JOB, "0"))
    words = [re.sub(r"[^\w.+-]+", "-", word).strip("+-") for word in re.split(r",(?=[+~]*[\w./@]+=)", swept)]
    return "_".join([str(number), *filter(None, words)])[:MAX_FOLDER_NAME].rstrip("_-.")


# At import, because a process of a Hydra launcher imports this module and composes before it calls our code.
register_resolvers()


def short(path: Path) -> str:
    """Returns the path relative to the current folder if that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def short_name(name: str) -> str:
    """Shortens a file name of a YAML error, which may also be a description such as "<unicode string>"."""
    return short(Path(name)) if Path(name).is_absolute() else name


def _declares_name(target: str) -> bool:
    """Returns True if a model of mxtrain declares a setting `name`. Reads the source instead of importing it."""
    spec = importlib.util.find_spec(target.rpartition(".")[0])
    loader = None if spec is None else spec.loader
    source = loader.get_source(target.rpartition(".")[0]) if isinstance(loader, InspectLoader) else None
    return source is None or re.search(r"(?m)^    name: ", source) is not None


def not_yaml(error: yaml.YAMLError) -> ConfigError:
    """Returns the error about a file that is not YAML, with its line."""
    mark: Optional[yaml.Mark] = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    location = f"{short_name(mark.name)}:{mark.line + 1}" if mark else "a file"
    problem = getattr(error, "problem", None) or first_line(error)
    return ConfigError(f"{location}: {problem if isinstance(error, OtherBase) else f'this is not YAML: {problem}'}.")


def read_option(file: Path) -> Any:
    """Reads the YAML file of an option.

    Raises:
        ConfigError: it is not YAML.
    """
    try:
        return OmegaConf.load(file)
    except yaml.YAMLError as error:
        raise not_yaml(error) from None


class ConfigFiles:
    """Hydra, initialised for one command. Use as a context manager.

    Args:
        config_dirs: folders of the user's own groups and presets (`--config-dir`).
        check_plugins: False to leave out plug-ins that cannot be used instead of raising an error.

    Raises:
        ConfigError: there is no such folder, a file in it has the name of one of ours, a plug-in cannot be used, or the
            current folder was deleted.
    """

    def __init__(self, config_dirs: Sequence[str] = (), check_plugins: bool = True):
        if not current_folder():
            raise ConfigError("the current folder was deleted. Change to another one: cd FOLDER.")
        register_resolvers()
        self._all_groups: Tuple[str, ...] = ()
        self._defaults: Dict[Tuple[str, ...], Sequence[Any]] = {}
        if check_plugins:
            require_usable_plugins()
        self.installed = conf_dirs()
        users = [Path(folder).resolve() for folder in config_dirs]
        self.search_path = [*self.installed, *users]
        remember_folders(users)
        for folder in users:
            if not is_folder(folder, "--config-dir"):
                raise ConfigError(f"--config-dir {folder}: there is no such folder.")
            for file in sorted(folder.rglob("*.yaml")):
                # Hydra uses the first file of a name on its search path, so the user's would silently have no effect.
                same = [own for own in self.installed if (own / file.relative_to(folder)).is_file()]
                if same:
                    owner = "mxtrain" if same[0] == self.installed[0] else f"a plug-in ({same[0]})"
                    raise ConfigError(
                        f"{short(file)}: {owner} has a file of this name, which would win. Give yours another name."
                    )

    def __enter__(self) -> Self:
        with COMPOSING:
            version.setbase("1.3")
            path = create_config_search_path(str(self.search_path[0]))
            for folder in self.search_path[1:]:
                anchor = SearchPathQuery(provider="schema")
                provider = "plug-in" if folder in self.installed else "command-line"
                path.prepend(provider=provider, path=f"file://{folder}", anchor=anchor)
            self.loader = ConfigLoader(config_search_path=path)
            # Not registered as `GlobalHydra`: threads compose at the same time, and nothing of ours reads it.
            self.hydra = Hydra(task_name="train", config_loader=self.loader)
        return self

    def __exit__(self, *error: object) -> None:
        """Does nothing: a composer changes no global state."""

    def groups(self) -> Tuple[str, ...]:
        """Returns the groups of mxtrain and of the user, without Hydra's own."""
        return tuple(name for name in self._names("", ObjectType.GROUP) if name != "hydra")

    def all_groups(self) -> Tuple[str, ...]:
        """Returns all groups, Hydra's own included."""
        if not self._all_groups:
            self._all_groups = (*self.groups(), *(f"hydra/{name}" for name in self._names("hydra", ObjectType.GROUP)))
        return self._all_groups

    def options(self, group: str) -> Tuple[str, ...]:
        """Returns the names of a group's options, ours and the user's."""
        return tuple(self._names(group, ObjectType.CONFIG))

    def _names(self, group: str, kind: ObjectType) -> List[str]:
        # The loader's own functions copy the repository each time, for overrides of the search path: 10 ms.
        names: List[str] = self.loader.repository.get_group_options(group, kind)
        return names

    def find_file(self, config_path: Optional[str]) -> Optional[Path]:
        """Returns the file of an option, e.g. of `model/lenet`; None if a Hydra plugin defines it in Python."""
        files = (folder / f"{config_path}.yaml" for folder in self.search_path)
        return next((file for file in files if config_path and file.is_file()), None)

    def class_of(self, group: str, option: object) -> Optional[type]:
        """Returns the class that an option of mxtrain or of a plug-in configures; None for an option of the user."""
        target = self._target_of(group, option)
        if target is None:
            return None
        target_class: type = import_target(target, group)
        return target_class

    def _target_of(self, group: str, option: object) -> Optional[str]:
        files = (folder / group / f"{option}.yaml" for folder in self.installed)
        file = next(filter(Path.is_file, files), None)
        if not isinstance(option, str) or file is None:
            return None
        content = read_option(file)
        # Files with `@package _global_` have the settings of the option below the name of the group.
        return str(content.get("_target_") or (content.get(group) or {}).get("_target_", ""))

    def named_models(self) -> Iterator[Type[Model]]:
        """Yields the models of mxtrain with a setting `name`, such as the networks of a library."""
        for file in sorted((self.search_path[0] / "model").glob("*.yaml")):
            target = self._target_of("model", file.stem)
            # Importing every model takes 0.4 s, reading the source does not.
            if target is not None and _declares_name(target):
                yield import_target(target, "model")

    def file_of(self, group: str, hydra: DictConfig) -> str:
        """Returns the file of a group's chosen option, for messages; the group's folder if there is no such file."""
        option = hydra.runtime.choices.get(group)
        names = option if isinstance(option, (list, tuple)) else [option]
        file = self.find_file(f"{group}/{names[0]}") if names else None
        if file is not None:
            return short(file)
        folders = [folder / group for folder in self.search_path if (folder / group).is_dir()]
        return short(folders[0] if folders else self.search_path[0]) + "/"

    def parse(self, overrides: Sequence[str]) -> List[Override]:
        """Parses overrides.

        Raises:
            ConfigError: some are invalid; the message lists all of them.
        """
        parser = OverridesParser.create(config_loader=self.loader)
        parsed, wrong = [], []
        for text in overrides:
            try:
                with COMPOSING:
                    parsed.extend(parser.parse_overrides([quote_pairs(expand_home(text))]))
            except Exception as error:  # functions of its grammar, as in x=int(a), raise any exception
                raise_interruption(error)
                wrong.append(malformed(text))
        if wrong:
            raise ConfigError("\n".join(wrong))
        return parsed

    def load(self, parsed: Sequence[Override]) -> DictConfig:
        """Returns the configuration as Hydra composes it. Does not convert the exceptions of Hydra."""
        with COMPOSING, refused_in_files():
            config = prepared.compose_prepared(self.search_path, parsed, self._is_group)
            if config is None:
                overrides = [override.input_line for override in parsed]
                config = self.loader.load_configuration(CONFIG_NAME, overrides, RunMode.RUN)
        return config

    def prepare(self, overrides: Sequence[str]) -> None:
        """Composes the files once for all runs that differ from these overrides in settings only."""
        prepared.prepare(self.search_path, self.parse(overrides), self._is_group, self.load)

    def _is_group(self, name: str) -> bool:
        is_group: bool = self.loader.repository.group_exists(name)
        return is_group

    def defaults(self, overrides: Sequence[str]) -> Sequence[Any]:
        """Returns Hydra's list of the files that the overrides select, in the order in which they are merged."""
        key = tuple(overrides)
        if key not in self._defaults:
            with COMPOSING:
                result = self.loader.compute_defaults_list(CONFIG_NAME, list(overrides), RunMode.RUN)
            self._defaults[key] = result.defaults
        return self._defaults[key]


def is_change(override: Override) -> bool:
    """Returns True for `key=value`, which changes an existing setting, and not for `+key`, `++key` and `~key`."""
    return override.type is not None and override.type.name == "CHANGE"


class ConfigLoader(ConfigLoaderImpl):
    """Loads configurations in which every class of mxtrain has all of its settings.

    Defaults are added after all files are merged, so that every file overrides them regardless of its position, and
    before the command line is applied, so that `group.field=value` finds the setting. Defaults of a user's own classes
    are not added: importing these may import MXNet, whose environment is not set yet. Nor are those of a class that
    `GROUP._target_=CLASS` replaces, as the new class need not have such settings. The score of a preset is not a
    setting, and is removed.
    """

    typed: Tuple[str, ...] = ()
    """Keys of the overrides of groups whose class the command line replaces."""

    def load_configuration(
        self, config_name: Optional[str], overrides: List[str], *args: Any, **kwargs: Any
    ) -> DictConfig:
        keys = [text.partition("=")[0].lstrip("+") for text in overrides]
        replaced = tuple(key[: -len("_target_")] for key in keys if key.endswith("._target_"))
        self.typed = tuple(key for key in keys if replaced and key.startswith(replaced))
        return super().load_configuration(config_name, overrides, *args, **kwargs)

    def _compose_config_from_defaults_list(self, defaults: List[ResultDefault], repo: IConfigRepository) -> DictConfig:
        config = super()._compose_config_from_defaults_list(defaults, repo)
        with open_dict(config):
            config.pop(SCORE, None)
        with flag_override(config, "no_deepcopy_set_nodes", True):
            # Copied to a list, because the loop replaces nodes.
            for parent, name, node in list(_nodes_with_target(config)):
                spec = own_spec(node._get_node("_target_")._value())
                if spec is not None:
                    names = {key.split(".")[1] for key in self.typed if key.startswith(f"{name}.")}
                    parent[name] = with_defaults(spec, node, {*GROUPS[name].model_fields, *names} if names else None)
        return config


def _nodes_with_target(config: DictConfig) -> Iterator[Tuple[DictConfig, str, Any]]:
    """Yields (parent, name, node) of each group, and of each option in a group of several, that names a class."""
    for group in config:
        node: Any = config._get_node(group)
        if group == "hydra" or not _is_mapping(node):
            continue
        if "_target_" in node:
            yield config, str(group), node
            continue
        for name in node:
            option = node._get_node(name)
            if _is_mapping(option) and "_target_" in option:
                yield node, str(name), option


def _is_mapping(node: object) -> bool:
    """Returns True for a mapping, False for a value, null, ??? or an interpolation."""
    return isinstance(node, DictConfig) and isinstance(node._value(), dict)


def with_defaults(spec: Type[Spec], node: DictConfig, names: Optional[Collection[str]] = None) -> DictConfig:
    """Returns a node with the defaults of its missing settings. A setting that is ``???`` keeps that value.

    Args:
        spec: the class of the node.
        node: settings.
        names: settings whose defaults are added; None: all.
    """
    defaults = _settings_of(spec)
    if names is not None:
        defaults = OmegaConf.masked_copy(defaults, [name for name in defaults if name in {"_target_", *names}])
    merged = OmegaConf.merge(defaults, node)
    for setting in node:
        if OmegaConf.is_missing(node, setting):  # merge replaces ??? by the default
            merged[setting] = "???"
    return merged


@functools.cache
def _settings_of(spec: Type[Spec]) -> DictConfig:
    return OmegaConf.create({"_target_": None, **default_settings(spec)})
