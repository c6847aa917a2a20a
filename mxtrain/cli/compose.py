"""Composes the configuration with Hydra. What is wrong with an override is said by `mxtrain.cli.mistakes`."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from hydra import version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from mxtrain.cli.hydra_settings import folder_of, is_folder
from mxtrain.description.config import flatten, import_target
from mxtrain.description.override_text import expand_home
from mxtrain.errors import ConfigError
from mxtrain.search_path import admit_current_folder

CONFIG_NAME = "config"
DEFAULT_TASK = "classification"
MAX_FOLDER_NAME = 120


def conf_dir() -> Path:
    """Our own configuration: inside the package in a wheel, at the top level in a checkout."""
    inside = Path(__file__).resolve().parent.parent / "conf"
    return inside if inside.is_dir() else inside.parent.parent / "conf"


def register_resolvers() -> None:
    """Interpolations of our own: `unique_suffix` keeps two runs that start in the same second apart."""
    OmegaConf.register_new_resolver("unique_suffix", lambda: uuid.uuid4().hex[:4], use_cache=True, replace=True)
    OmegaConf.register_new_resolver("job_folder", job_folder, replace=True)


def job_folder(number: Any, swept: str) -> str:
    """The folder of a sweep's job, e.g. `0_model-lenet_optimizer.lr-0.1`, which is its name in TensorBoard, too.

    Only what needs no quotes stands in it: a name with `=` or commas would be an override or a sweep where it is typed.
    """
    words = [re.sub(r"[^\w.+-]+", "-", word).strip("+-") for word in re.split(r",(?=[+~]*[\w./@]+=)", swept)]
    return "_".join([str(number), *filter(None, words)])[:MAX_FOLDER_NAME].rstrip("_-.")


@dataclass(frozen=True)
class Composed:
    """A composed configuration.

    Attributes:
        config: the resolved groups as plain nested dicts.
        hydra: Hydra's own node.
        overrides: the overrides that Hydra has to be given to compose this.
    """

    config: Mapping[str, Any]
    hydra: DictConfig
    overrides: Sequence[str]
    composer: Composer

    def chosen(self, group: str) -> List[str]:
        """The chosen options of a group: one, none, or several where it is a list."""
        option = self.hydra.runtime.choices.get(group)
        if option is None:
            # Hydra does not note the choices of a list; each of its options has its own name below the group.
            return [name for name in self.config.get(group) or {} if name in self.composer.options(group)]
        return [str(option)]

    @property
    def run_dir(self) -> Path:
        """Where a single run is kept. Raises: ConfigError: it is no name that a folder can have."""
        return folder_of(self.hydra, "run.dir")

    @property
    def sweep_dir(self) -> Path:
        """Where the jobs of a sweep are kept, each in a folder of its own. Raises as `run_dir`."""
        return folder_of(self.hydra, "sweep.dir")

    def where(self, path: str) -> str:
        """The file (and line) that gives a setting, else that of its group's option, as short as can be written."""
        from mxtrain.cli.origins import find_origins

        origins = [origin for origin in find_origins(path, self) if origin.in_file]
        return origins[-1].place if origins else self.composer.file_of(path.split(".")[0], self.hydra)


# A launcher's worker imports this module with the job, and composes before it calls anything in it.
register_resolvers()


def short(path: Path) -> str:
    """Relative to the current folder where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


class Composer:
    """Hydra, initialised for one command. Use as a context manager.

    Args:
        config_dirs: folders of the user's own groups and presets (`--config-dir`).

    Raises:
        ConfigError: there is no such folder, or a file in it has the name of one of ours.
    """

    def __init__(self, config_dirs: Sequence[str] = ()):
        register_resolvers()
        self._all_groups: Tuple[str, ...] = ()
        self._defaults: Dict[Tuple[str, ...], Sequence[Any]] = {}
        own = conf_dir()
        self.search_path = [own, *(Path(folder).resolve() for folder in config_dirs)]
        for folder in self.search_path[1:]:
            if not is_folder(folder, "--config-dir"):
                raise ConfigError(f"--config-dir {folder}: there is no such folder.")
            for file in sorted(folder.rglob("*.yaml")):
                if (own / file.relative_to(folder)).is_file():
                    raise ConfigError(
                        f"{short(file)}: mxtrain has a file of this name, which would win. Give yours another name."
                    )

    def __enter__(self) -> Composer:
        GlobalHydra.instance().clear()
        version.setbase("1.3")
        path = create_config_search_path(str(self.search_path[0]))
        for folder in self.search_path[1:]:
            anchor = SearchPathQuery(provider="schema")
            path.prepend(provider="command-line", path=f"file://{folder}", anchor=anchor)
        self.hydra = Hydra.create_main_hydra2(task_name="train", config_search_path=path)
        self.loader: Any = self.hydra.config_loader
        return self

    def __exit__(self, *error: Any) -> None:
        GlobalHydra.instance().clear()

    def groups(self) -> Tuple[str, ...]:
        """Our groups and the user's, without Hydra's own."""
        return tuple(name for name in self.loader.list_groups("") if name != "hydra")

    def all_groups(self) -> Tuple[str, ...]:
        """All groups, Hydra's own included."""
        if not self._all_groups:
            self._all_groups = (*self.groups(), *(f"hydra/{name}" for name in self.loader.list_groups("hydra")))
        return self._all_groups

    def options(self, group: str) -> Tuple[str, ...]:
        """The names of a group's options, ours and the user's."""
        return tuple(self.loader.get_group_options(group, results_filter=ObjectType.CONFIG))

    def find_file(self, config_path: Optional[str]) -> Optional[Path]:
        """The file of an option, e.g. of `model/lenet`; None for what plugins define in Python."""
        files = (folder / f"{config_path}.yaml" for folder in self.search_path)
        return next((file for file in files if config_path and file.is_file()), None)

    def file_of(self, group: str, hydra: DictConfig) -> str:
        """The file of a group's chosen option, for messages; the group's folder where that isn't one file."""
        option = hydra.runtime.choices.get(group)
        names = option if isinstance(option, (list, tuple)) else [option]
        file = self.find_file(f"{group}/{names[0]}") if names else None
        if file is not None:
            return short(file)
        folders = [folder / group for folder in self.search_path if (folder / group).is_dir()]
        return short(folders[0] if folders else self.search_path[0]) + "/"

    def compose(self, overrides: Sequence[str]) -> Composed:
        """The configuration with these overrides, which must not sweep.

        Raises:
            ConfigError: an override is wrong; the message says what is right (see `mistakes.WrongOverrides`).
        """
        from mxtrain.cli import choices, mistakes

        parsed = self._fit_task(choices.drop_absent_presets(self.parse(overrides)))
        mistakes.refuse_sweeps(parsed, self)
        mistakes.refuse_deletions(parsed, self)
        if any(choices.wrong_choice(override, self) for override in parsed):
            parsed = mistakes.fit_open_mappings(parsed, self)
        try:
            config = self.load(parsed)
        except Exception as error:  # Hydra raises whatever its own code stumbles over in odd values
            # Composing is what takes time, so other mistakes are looked for only once there is one.
            parsed = mistakes.fit_open_mappings(parsed, self, error)
            config = self.load(parsed)
        mistakes.refuse_misplaced_presets(config, self)
        if any(not str(target).startswith("hydra") for target in _targets(config.hydra)):
            admit_current_folder()  # a launcher, sweeper or callback of the user's, which Hydra imports itself
        return Composed(resolve(config), config.hydra, [o.input_line for o in parsed], self)

    def parse(self, overrides: Sequence[str]) -> List[Override]:
        """Raises: ConfigError: some are no overrides at all."""
        parser = OverridesParser.create(config_loader=self.loader)
        parsed, wrong = [], []
        for text in overrides:
            try:
                parsed.extend(parser.parse_overrides([expand_home(text)]))
            except Exception:  # its functions, as in x=int(a), raise what Python raises
                from mxtrain.cli.mistakes import malformed

                wrong.append(malformed(text))
        if wrong:
            raise ConfigError("\n".join(wrong))
        return parsed

    def load(self, parsed: Sequence[Override]) -> DictConfig:
        """The configuration as Hydra composes it. Raises what Hydra raises."""
        return self.loader.load_configuration(
            config_name=CONFIG_NAME, overrides=[override.input_line for override in parsed], run_mode=RunMode.RUN
        )

    def defaults(self, overrides: Sequence[str]) -> Sequence[Any]:
        """Hydra's list of the files that these overrides choose, in the order in which they are merged."""
        key = tuple(overrides)
        if key not in self._defaults:
            found = self.loader.compute_defaults_list(CONFIG_NAME, list(overrides), RunMode.RUN)
            self._defaults[key] = found.defaults
        return self._defaults[key]

    def _fit_task(self, parsed: Sequence[Override]) -> List[Override]:
        """`model.name=` alone means a GluonCV network; a dataset, or else a model, alone means the task that it is
        made for."""
        chosen = {override.key_or_group: override.value() for override in parsed}
        added = []
        if "model.name" in chosen and not {"model", "experiment"} & set(chosen):
            added.append("model=gluoncv")
        if not {"task", "experiment"} & set(chosen):
            tasks = (self._task_of(group, chosen[group]) for group in ("dataset", "model") if group in chosen)
            task = next(tasks, None)
            if task is not None and task != DEFAULT_TASK:
                added.append(f"task={task}")
        return [*self.parse(added), *parsed]

    def _task_of(self, group: str, option: Any) -> Optional[str]:
        """The task that an option of ours is made for, None where it says nothing."""
        file = self.search_path[0] / group / f"{option}.yaml"
        if not isinstance(option, str) or not file.is_file():
            return None
        content: Any = OmegaConf.load(file)
        target = content.get("_target_") or (content.get(group) or {}).get("_target_", "")  # in `@package _global_`
        serves = getattr(import_target(str(target), group), "serves", ())
        return serves[0] if isinstance(serves, tuple) and serves else None  # a property: a setting decides


def _targets(node: Any) -> Iterator[Any]:
    """All classes that Hydra's own configuration names."""
    settings = flatten(OmegaConf.to_container(node))
    return (value for path, value in settings.items() if path.rpartition(".")[2] == "_target_")


def resolve(config: DictConfig) -> Dict[str, Any]:
    """Our groups as plain nested dicts, with interpolations resolved.

    Raises:
        ConfigError: an interpolation names what does not exist.
    """
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, [name for name in config if name != "hydra"]))
    try:
        return OmegaConf.to_container(OmegaConf.create(plain), resolve=True)  # type: ignore[return-value]
    except Exception as error:  # resolvers are functions, and raise what Python raises
        from mxtrain.cli.mistakes import first_line

        raise ConfigError(f"{getattr(error, 'full_key', '') or 'the configuration'}: {first_line(error)}") from None


def is_change(override: Override) -> bool:
    """Whether it changes a value that must exist: not `+key`, `++key` or `~key`."""
    return override.type is not None and override.type.name == "CHANGE"
