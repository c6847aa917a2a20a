"""Hydra's loader of configurations, which adds the settings that YAML files leave out with their defaults.

Fields, defaults and descriptions of settings are in the classes alone; a YAML file lists only what its option changes.
Defaults are added after all files are merged and before the command line is applied. They are not added to a single
file, because a file that is composed of another one would then reset what the other one changes. A user's own classes
are completed later, because importing them may import MXNet before its variables are set.
"""

from __future__ import annotations

import functools
from typing import Any, Iterator, List, Tuple, Type

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import ResultDefault
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from mxtrain.archive.score import SCORE
from mxtrain.config.specs import default_settings, own_spec
from mxtrain.types import Spec


class ConfigLoader(ConfigLoaderImpl):
    """Loads configurations in which every class of mxtrain has all of its settings.

    Settings are added after all files are merged and before the command line is applied: a file, such as a preset or
    one with a defaults list, overrides them at any position of the order, and `group.field=value` finds them.
    The settings of a user's own classes are not added, since importing these may import MXNet, whose environment is not
    set yet. The score of a preset is no setting, and left out.
    """

    def _compose_config_from_defaults_list(self, defaults: List[ResultDefault], repo: IConfigRepository) -> DictConfig:
        config = super()._compose_config_from_defaults_list(defaults, repo)
        with open_dict(config):
            config.pop(SCORE, None)
        with flag_override(config, "no_deepcopy_set_nodes", True):
            for parent, name, node in list(_nodes_with_target(config)):
                spec = own_spec(node._get_node("_target_")._value())
                if spec is not None:
                    parent[name] = with_defaults(spec, node)
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
    """Returns True for a mapping that is written out, False for a value, null, ??? or an interpolation."""
    return isinstance(node, DictConfig) and isinstance(node._value(), dict)


def with_defaults(spec: Type[Spec], node: DictConfig) -> DictConfig:
    """Returns a node with the settings of its class that it leaves out. A setting that is ``???`` stays so."""
    merged = OmegaConf.merge(_settings_of(spec), node)
    for setting in node:
        if OmegaConf.is_missing(node, setting):  # merge takes ??? for nothing
            merged[setting] = "???"
    return merged


@functools.cache
def _settings_of(spec: Type[Spec]) -> DictConfig:
    return OmegaConf.create({"_target_": None, **default_settings(spec)})
