"""Composes the configuration with Hydra. `mxtrain.composing.mistakes` words the errors of wrong overrides.

Hydra visits the defaults list from its end, so a file can say "the dataset of this task" but not "the task of this
dataset". Therefore `task=` is added here if `dataset=` or `model=` is typed without it. In a sweep over datasets of
different tasks that is impossible, and the sweep is refused.
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
"""Groups for whose options tasks set something."""
DEFAULTED_SETTINGS = tuple(f"{group}." for group in DEFAULTED_BY_TASKS)


@dataclass(frozen=True)
class Composed:
    """A composed configuration.

    Attributes:
        config: the resolved groups as plain nested dicts.
        tree: the same with Hydra's own node, as Hydra composed it; interpolations are not resolved.
        overrides: the overrides that Hydra has to be given to compose this.
        composer: the files that it is composed of.
        objects: objects of the Python API by the path of their setting.
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
        """Returns the directory of a single run. Raises: ConfigError: it is no valid folder name."""
        return folder_of(self.hydra, "run.dir")

    @property
    def sweep_dir(self) -> Path:
        """Returns the directory of a sweep, with a folder for each job. Raises as `run_dir`."""
        return folder_of(self.hydra, "sweep.dir")

    def with_nodes(self, nodes: Mapping[str, Config], objects: Mapping[str, Any]) -> Composed:
        """Returns the same with other nodes.

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
        """Returns the file and line that give a setting, else the file that names its class or that of its group's
        option, as short as can be written."""
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
            # Composing is slow, so further mistakes are searched for only after one was found.
            mistakes.refuse_deletions(deleted, self)
            parsed = mistakes.fit_open_mappings(parsed, self, error)
            try:
                config = self.load(parsed)
            except Exception as remaining:  # a value below a mapping that takes any key
                raise mistakes.not_composed(remaining) from None
        leftovers = self._leftovers(parsed, config.hydra.runtime.choices)
        # A process that this one starts is given the overrides that were added here.
        mistakes.refuse_deletions([override for override in deleted if override.input_line not in leftovers], self)
        deletions = set(leftovers) - {override.input_line for override in deleted}
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
        """Adds the options that typed ones imply.

        `model.name=` without `model=` implies the library of that network. A dataset, or otherwise a model, without
        `task=` implies its task. A dataset that only some models read implies one of these models.
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

    def _leftovers(self, parsed: Sequence[Override], options: Mapping[str, Any]) -> List[str]:
        """Returns overrides that delete the settings which a task makes for its default option of a group, such as the
        end of its schedule, where the user chose another option that has no such setting."""
        typed = {override.key_or_group for override in parsed if not override.is_delete()}
        overrides = []
        # Read only if a group was chosen that tasks set something for, since parsing YAML takes milliseconds a file.
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
    """Returns all classes that Hydra's own configuration names."""
    settings = flatten(OmegaConf.to_container(node))
    return (value for path, value in settings.items() if path.rpartition(".")[2] == "_target_")


def resolve(config: DictConfig) -> Dict[str, Any]:
    """Returns the groups of mxtrain as plain nested dicts, with interpolations resolved.

    Raises:
        ConfigError: an interpolation names what does not exist.
    """
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, [name for name in config if name != "hydra"]))
    try:
        return OmegaConf.to_container(OmegaConf.create(plain), resolve=True)
    except Exception as error:  # resolvers are functions, and raise what Python raises
        raise_interruption(error)
        raise ConfigError(f"{getattr(error, 'full_key', '') or 'the configuration'}: {first_line(error)}") from None
