"""Composes the configuration with Hydra. `mxtrain.composing.mistakes` explains wrong overrides.

Hydra visits the defaults list from its end, so the file of a task can choose a dataset, but the file of a dataset
cannot choose a task. Therefore `task=` is added here if `dataset=` or `model=` is typed without it. In a sweep over
datasets of different tasks that is impossible, and the sweep is rejected.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from mxtrain.composing import choices, mistakes
from mxtrain.composing.config_files import ConfigFiles, read_option
from mxtrain.composing.hydra_errors import first_line
from mxtrain.composing.hydra_settings import folder_of
from mxtrain.composing.origins import file_with_target, find_origins
from mxtrain.config.moved import current_path, moved_targets, with_current_paths
from mxtrain.config.options import DEFAULT_TASK, task_for
from mxtrain.config.search_path import admit_current_folder
from mxtrain.config.specs import flatten, own_spec
from mxtrain.errors import ConfigError, raise_interruption

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config

DEFAULTED_BY_TASKS = ("loss", "lr_scheduler", "optimizer")
"""Groups whose settings a task's YAML file may change, for the option that it chooses by default."""
DEFAULTED_SETTINGS = tuple(f"{group}." for group in DEFAULTED_BY_TASKS)


@dataclass(frozen=True)
class Composed:
    """A composed configuration.

    Attributes:
        config: the resolved groups as plain nested dicts.
        tree: the same as Hydra composed it: with the group `hydra`, and with interpolations that are not resolved.
        overrides: overrides that compose this configuration, including those that were added to the user's.
        composer: configuration files.
        objects: path of a setting -> object that was passed to the Python API.
    """

    config: Config
    tree: DictConfig
    overrides: Sequence[str]
    composer: ConfigFiles
    objects: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hydra(self) -> DictConfig:
        """Returns Hydra's own node."""
        return self.tree.hydra

    def chosen(self, group: str) -> List[str]:
        """Returns the chosen options of a group: one, none, or several if its value is a list."""
        option = self.hydra.runtime.choices.get(group)
        if option is None:
            # Hydra does not note the choices of a list; each of its options has its own name below the group.
            return [name for name in self.config.get(group) or {} if name in self.composer.options(group)]
        return [str(option)]

    @property
    def run_dir(self) -> Path:
        """Returns the directory of a single run.

        Raises:
            ConfigError: it is not a valid folder name.
        """
        return folder_of(self.hydra, "run.dir")

    @property
    def sweep_dir(self) -> Path:
        """Returns the directory of a sweep, with a folder for each job. Raises as `run_dir`."""
        return folder_of(self.hydra, "sweep.dir")

    def with_nodes(self, nodes: Mapping[str, Config], objects: Mapping[str, Any]) -> Composed:
        """Returns this configuration with some groups, or members of groups, replaced.

        Args:
            nodes: path of a group, or of a member of a group, -> plain values.
            objects: the objects that the nodes are placeholders of.
        """
        config: Dict[str, Any] = {**self.config}
        for path, node in nodes.items():
            group, _, name = path.partition(".")
            config[group] = node if not name else {**(config.get(group) or {}), name: node}
        tree = copy.deepcopy(self.tree)
        with open_dict(tree):
            for group in {path.partition(".")[0] for path in nodes}:
                tree[group] = OmegaConf.create(config[group])
        return replace(self, config=config, tree=tree, objects=objects)

    def where(self, path: str) -> str:
        """Returns file and line where a setting is given, for messages, as a short path.

        If no file or override gives it, returns the file that names its class, or else the file of the group's option.
        """
        origins = [origin for origin in find_origins(path, self.composer, self.overrides) if origin.in_file]
        named = file_with_target(path, self.composer, self.overrides)
        return origins[-1].place if origins else named or self.composer.file_of(path.split(".")[0], self.hydra)


class Composer(ConfigFiles):
    """Composes the configuration with Hydra. Use as a context manager; see `ConfigFiles`."""

    def compose(self, overrides: Sequence[str]) -> Composed:
        """Returns the configuration with these overrides, which must not sweep.

        Raises:
            ConfigError: an override is wrong; the message suggests the right one (see `mistakes.WrongOverrides`).
        """
        parsed = self._fit_task(choices.drop_absent_presets(self.parse(overrides)))
        mistakes.refuse_sweeps(parsed, self)
        deleted = [one for one in parsed if one.is_delete() and one.key_or_group.startswith(DEFAULTED_SETTINGS)]
        mistakes.refuse_deletions([override for override in parsed if override not in deleted], self)
        if any(choices.wrong_choice(override, self) for override in parsed):
            parsed = mistakes.fit_open_mappings(parsed, self)
        try:
            config = self.load(parsed)
        # Up to Python 3.11 a Ctrl-C within `__set_name__` arrives as a RuntimeError.
        except Exception as error:  # Hydra raises any kind of exception on unusual values
            raise_interruption(error)
            # Searching for mistakes composes again, which is slow, so it is only done after an error.
            mistakes.refuse_deletions(deleted, self)
            parsed = mistakes.fit_open_mappings(parsed, self, error)
            try:
                config = self.load(parsed)
            except Exception as remaining:  # none that `mistakes` knows, e.g. below a mapping that accepts any key
                raise mistakes.not_composed(remaining) from None
        needed = self._deletions_for_task(parsed, config.hydra.runtime.choices)
        # Deletions that are needed may also be typed: child processes are given the overrides that were added here.
        mistakes.refuse_deletions([override for override in deleted if override.input_line not in needed], self)
        deletions = set(needed) - {override.input_line for override in deleted}
        if deletions:
            parsed = [*parsed, *self.parse(sorted(deletions))]
            config = self.load(parsed)
        mistakes.refuse_misplaced_presets(config, self)
        # Hydra's own classes are installed; the current folder is searched only for a user's.
        if any(not str(target).startswith("hydra") for target in _targets(config.hydra)):
            admit_current_folder()  # a launcher, sweeper or callback of the user's, which Hydra imports itself
        composed = Composed(resolve(config), config, [o.input_line for o in parsed], self)
        for path, old in moved_targets(composed.config):
            origins = find_origins(path, self, composed.overrides)
            place = origins[-1].place if origins else composed.where(path)
            warnings.warn(
                f"{path}={old} ({place}): the class is now {current_path(old)}. Write the new path.",
                FutureWarning,
                stacklevel=2,
            )
            OmegaConf.update(config, path, current_path(old))
        return replace(composed, config=with_current_paths(composed.config))

    def _fit_task(self, parsed: Sequence[Override]) -> List[Override]:
        """Adds the overrides that the given ones imply.

        `model.name=` without `model=` implies the library of that network. `dataset=`, or otherwise `model=`, implies
        its task unless `task=` is given. A dataset that only some models read implies one of these models.
        """
        chosen = {override.key_or_group: override.value() for override in parsed}
        implied = []
        if "model.name" in chosen and not {"model", "experiment"} & set(chosen):
            typed = str(chosen["model.name"]), str(chosen.get("task", ""))
            named_model = next(filter(None, (kind.option_of(*typed) for kind in self.named_models())), "")
            if named_model:
                chosen["model"] = named_model
                implied.append(f"model={named_model}")
        if not {"model", "experiment"} & set(chosen):
            model = getattr(getattr(self.class_of("dataset", chosen.get("dataset")), "gives", None), "usual_model", "")
            implied += [f"model={model}"] if model else []
        if not {"task", "experiment"} & set(chosen):
            tasks = (self._task_of(group, chosen[group]) for group in ("dataset", "model") if group in chosen)
            task = next(tasks, None)
            if task is not None and task != DEFAULT_TASK:
                implied.append(f"task={task}")
        # Put first, so that the user's overrides are applied after the overrides that they imply.
        return [*self.parse(implied), *parsed]

    def _deletions_for_task(self, parsed: Sequence[Override], options: Mapping[str, Any]) -> List[str]:
        """Returns overrides that delete settings which the user's choice of an option makes unknown.

        A task's file changes settings of its default option, such as the duration of its schedule. If the user chooses
        another option, which has no such setting, Hydra would still add it there.
        """
        typed = {override.key_or_group for override in parsed if not override.is_delete()}
        overrides = []
        # Read only if the user chose an option of such a group, because parsing a YAML file takes milliseconds.
        task: Any = self._content_of("task", options.get("task")) if typed & set(DEFAULTED_BY_TASKS) else {}
        for group in typed & set(task) & set(DEFAULTED_BY_TASKS):
            content = self._content_of(group, options.get(group))
            spec = own_spec(content.get("_target_"))
            known = {*content, *(spec.model_fields if spec is not None else ())}
            # A file with a defaults list does not contain the settings that it takes from other files.
            unknown = set(task[group]) - known if known and "defaults" not in known else ()
            overrides += [f"~{group}.{name}" for name in unknown if f"{group}.{name}" not in typed]
        return overrides

    def _content_of(self, group: str, option: object) -> Any:
        """Returns the content of an option's YAML file; empty if there is no such file."""
        file = self.find_file(f"{group}/{option}")
        content: Any = read_option(file) if file is not None else {}
        return content if group == "task" else content.get(group, content)

    def _task_of(self, group: str, option: object) -> Optional[str]:
        """Returns the task that a built-in option is made for; None if it names no task."""
        kinds = getattr(self.class_of(group, option), "gives" if group == "dataset" else "takes", None)
        targets = getattr(kinds, "targets", ())  # none of a property: a setting decides
        return task_for(targets[0]) or None if targets else None


def _targets(node: DictConfig) -> Iterator[object]:
    """Returns all values of `_target_` in the group `hydra`."""
    settings = flatten(OmegaConf.to_container(node))
    return (value for path, value in settings.items() if path.rpartition(".")[2] == "_target_")


def resolve(config: DictConfig) -> Dict[str, Any]:
    """Returns the groups of mxtrain as plain nested dicts, with interpolations resolved.

    Raises:
        ConfigError: an interpolation refers to a setting that does not exist.
    """
    plain: Any = OmegaConf.to_container(config)
    del plain["hydra"]
    try:
        return OmegaConf.to_container(OmegaConf.create(plain), resolve=True)
    except Exception as error:  # resolvers are functions, and raise what Python raises
        raise_interruption(error)
        raise ConfigError(f"{getattr(error, 'full_key', '') or 'the configuration'}: {first_line(error)}") from None
