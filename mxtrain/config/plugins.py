"""Plug-ins: installed packages that add options to mxtrain without flags (docs/extending/plug-ins.md).

A package declares an entry point of the group `mxtrain.plugins` whose value is an importable package. Its folder `conf`
holds options as mxtrain's own does, and its classes are trusted in descriptions from files: whoever installs a package
has decided to run its code. Nothing of a plug-in is imported before one of its options is chosen.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Tuple

from mxtrain import __version__
from mxtrain.config.locations import conf_dir
from mxtrain.config.search_path import current_folder
from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

GROUP = "mxtrain.plugins"
OWN = "mxtrain"
DISTRIBUTIONS = (".dist-info", ".egg-info")
"""Endings of the folders in which an installed package keeps its metadata."""


@dataclass(frozen=True)
class Plugin:
    """An entry point of an installed package."""

    name: str
    """Name of the entry point."""
    package: str
    """Name and version of the installed package, e.g. "mxtrain-time 0.1.0"."""
    module: str = ""
    """Import path of the package whose classes are trusted."""
    conf: Optional[Path] = None
    """Folder of its options."""
    problem: str = ""
    """Reason why it cannot be used; empty if it can."""

    @property
    def message(self) -> str:
        """Returns the problem as a sentence with what to do."""
        return (
            f"the plug-in '{self.name}' of the installed package {self.package} {self.problem}. Install another "
            f"version, or remove it: python -m pip uninstall {self.package.partition(' ')[0]}"
        )


def conf_dirs() -> Tuple[Path, ...]:
    """Returns the folders of installed options: mxtrain's own first, then those of usable plug-ins."""
    return (conf_dir(), *(plugin.conf for plugin in find_plugins() if plugin.conf is not None and not plugin.problem))


def is_installed(target: str) -> bool:
    """Returns True for the import path of a class of mxtrain or of a usable plug-in. Imports nothing."""
    return target.partition(".")[0] == OWN or plugin_of(target) is not None


def plugin_of(target: str) -> Optional[Plugin]:
    """Returns the usable plug-in below whose module an import path is; None if there is none."""
    plugins = (plugin for plugin in find_plugins() if not plugin.problem)
    return next((plugin for plugin in plugins if target.startswith(f"{plugin.module}.")), None)


def require_usable_plugins() -> None:
    """Checks the installed plug-ins.

    Raises:
        ConfigError: one cannot be used; the message has a line for each, with its package.
    """
    messages = [plugin.message for plugin in find_plugins() if plugin.problem]
    if messages:
        raise ConfigError("\n".join(messages))


@functools.cache
def find_plugins() -> Tuple[Plugin, ...]:
    """Returns the installed plug-ins in the order of their names. Unusable plug-ins have a `problem`."""
    found = sorted(_installed(), key=lambda plugin: (plugin.name, plugin.package))
    file_owners: Dict[Path, str] = {}
    plugins: List[Plugin] = []
    for plugin in found:
        conf = plugin.conf
        for name in () if conf is None else sorted(file.relative_to(conf) for file in conf.rglob("*.yaml")):
            owner = OWN if (conf_dir() / name).is_file() else file_owners.setdefault(name, plugin.package)
            if owner != plugin.package and not plugin.problem:
                plugin = replace(plugin, problem=f"has the option {name.with_suffix('')}, which {owner} has as well")
        plugins.append(plugin)
    return tuple(plugins)


def _installed() -> Iterator[Plugin]:
    """Reads the entry points of installed packages.

    `importlib.metadata.entry_points` would parse those of all packages, which takes longer than the rest of `--help`.
    The current folder is left out: what lies in it was not installed.
    """
    names, here = set(), current_folder()
    # An empty entry is the current folder, in which anybody's files may lie.
    for folder in dict.fromkeys(os.path.normpath(os.path.join(here, path)) for path in sys.path if path):
        try:
            entries = [] if folder == here else os.listdir(folder)
        except OSError:  # an archive, or a folder that is missing or cannot be read
            continue
        for name in entries:
            if not name.endswith(DISTRIBUTIONS) or name in names:
                continue
            names.add(name)  # the first folder on the path wins, as for imports
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    declares = GROUP.encode() in file.read()
            except OSError:  # most packages have none
                continue
            if declares:
                yield from _plugins_of(Path(folder, name))


def _plugins_of(folder: Path) -> Iterator[Plugin]:
    from importlib.metadata import PathDistribution

    distribution = PathDistribution(folder)
    package = f"{distribution.metadata['Name']} {distribution.version}"
    for entry in distribution.entry_points:
        if entry.group == GROUP:
            plugin = Plugin(entry.name, package, entry.value, problem=_unmet_requirement(distribution))
            try:
                yield replace(plugin, conf=_folder_of(entry.value))
            except (ImportError, ValueError) as error:
                yield replace(plugin, problem=str(error))


def _unmet_requirement(distribution: Distribution) -> str:
    """Returns the requirement of another version of mxtrain, which `pip --no-deps` installs against; or ""."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in distribution.requires or ():
        with suppress(InvalidRequirement):
            needed = Requirement(text)
            applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if needed.name == OWN and applies and not needed.specifier.contains(__version__, prereleases=True):
                return f"needs {OWN}{needed.specifier}, and this is version {__version__}"
    return ""


def _folder_of(module: str) -> Path:
    """Returns the folder `conf` in a package, which is not imported. Raises: ImportError, ValueError: there is none."""
    first, *inner = module.split(".")
    spec = importlib.util.find_spec(first) if module.replace(".", "").isidentifier() else None
    if spec is None or not spec.submodule_search_locations or first == OWN:
        raise ImportError(f"names '{module}', which is no installed package")
    for location in spec.submodule_search_locations:
        folder = Path(location, *inner, "conf")
        if folder.is_dir():
            return folder
    raise ImportError(f"has no folder conf in its package {module}")
