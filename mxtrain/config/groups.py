"""Defines the groups of the configuration, and builds the `Description` of a run from one validated spec per group."""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Type

from mxtrain.amp.spec import Precision
from mxtrain.callback.spec import CallbackSpec
from mxtrain.checkpoint.spec import CheckpointSpec
from mxtrain.cluster.spec import Cluster
from mxtrain.config.description import Description as Description
from mxtrain.config.placeholders import with_object
from mxtrain.config.rules import RULES
from mxtrain.config.specs import Where, build_spec, collect, complete_settings, with_text_keys
from mxtrain.data.spec import BaseDataset, with_fold
from mxtrain.early_stopping.spec import StoppingRule
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.kvstore.spec import KVStore
from mxtrain.logger.spec import Logger
from mxtrain.loss.custom import CustomLoss
from mxtrain.loss.spec import Distillation, Loss
from mxtrain.lr_scheduler.spec import Schedule
from mxtrain.metric.spec import Metric
from mxtrain.model.custom import CustomModel
from mxtrain.model.spec import Model
from mxtrain.optimizer.spec import CustomOptimizer, Optimizer
from mxtrain.parallel.spec import Parallel
from mxtrain.runtime.spec import Runtime
from mxtrain.task.fit import target_of
from mxtrain.task.spec import Task
from mxtrain.training.spec import Trainer
from mxtrain.types import Spec
from mxtrain.types.kinds import TargetKind

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config

GROUPS: Dict[str, Type[Spec]] = {
    "task": Task,
    "model": Model,
    "dataset": BaseDataset,
    "parallel": Parallel,
    "kvstore": KVStore,
    "amp": Precision,
    "optimizer": Optimizer,
    "lr_scheduler": Schedule,
    "loss": Loss,
    "metric": Metric,
    "distillation": Distillation,
    "early_stopping": StoppingRule,
    "checkpoint": CheckpointSpec,
    "callback": CallbackSpec,
    "logger": Logger,
    "trainer": Trainer,
    "cluster": Cluster,
    "runtime": Runtime,
}
"""Group -> the base class of its options."""

WRAPPERS: Dict[str, Type[Spec]] = {"model": CustomModel, "loss": CustomLoss, "optimizer": CustomOptimizer}
"""Group -> class that wraps a user's own class or function; in other groups the base class does."""

NAMED_GROUPS = ("metric", "callback", "logger")
"""Groups with any number of options, each under a name of its own."""

PRESET_GROUPS = ("experiment", "debug")
"""Groups whose options only override settings of other groups."""


def describe(
    config: Config,
    where: Where,
    *,
    check_rules: bool = True,
    set_environment: Optional[Callable[[Runtime, Parallel, Precision], object]] = None,
    objects: Mapping[str, Any] = MappingProxyType({}),
) -> Description:
    """Validates a composed configuration. Imports MXNet only if a user's own class does.

    Args:
        config: resolved plain nested dicts, one entry per group.
        where: returns the file of a group's chosen option, for messages.
        check_rules: whether to check `RULES`, which compare settings of several groups.
        set_environment: called with the groups that it depends on, if they are valid, before any other group imports a
            class of the user, which may import MXNet.
        objects: Python objects by the path of the setting that has a placeholder, e.g. "model" or "metric.f1".

    Raises:
        ConfigError: a setting is invalid; the message has one line for each error.
    """
    config = {**{name: {} for name in NAMED_GROUPS}, **with_text_keys(config)}
    _require_groups(config, where)

    # Cached, because `set_environment` needs three of the groups before all groups are built.
    @functools.cache
    def make(group: str) -> Any:
        if group not in NAMED_GROUPS:
            return with_object(build_group(group, config[group], where), objects)
        named = config[group] or {}
        _require_names(group, named, where)
        builders = [_spec_builder(f"{group}.{name}", node, where) for name, node in named.items()]
        return {name: with_object(spec, objects) for name, spec in zip(named, collect(builders))}

    if set_environment is not None:
        with suppress(ConfigError):  # reported below, together with the errors of all other groups
            set_environment(make("runtime"), make("parallel"), make("amp"))
    specs = dict(zip(GROUPS, collect([functools.partial(make, group) for group in GROUPS])))
    # Defaults of a dataset may depend on the task, the model and the loss.
    target = target_of(specs["task"], specs["dataset"])
    # Without a target, `check_task_fits` rejects the dataset.
    dataset = specs["dataset"].for_run(target or TargetKind, specs["model"], specs["loss"])
    specs["dataset"] = with_fold(dataset, specs["trainer"].held_out)
    complete = dict(_complete(config))
    complete["model"] = {**complete["model"], **specs["model"].recorded}
    description = Description(config=complete, **specs)
    collect([functools.partial(rule, description) for rule in RULES if check_rules])
    return description


def _complete(config: Config) -> Config:
    """Adds the defaults of the user's own classes, which composing does not import, to a valid configuration."""
    groups = [*(group for group in GROUPS if group not in NAMED_GROUPS), *NAMED_GROUPS]
    return {group: complete_group(config[group], group) for group in groups}


def complete_group(node: Any, group: str) -> Dict[str, Any]:
    """Adds the defaults of missing settings to a group; see `complete_settings`."""
    if group in NAMED_GROUPS:
        return {name: complete_settings(item, f"{group}.{name}") for name, item in (node or {}).items()}
    return complete_settings(node, group)


def _require_groups(config: Config, where: Where) -> None:
    """Checks that the configuration has exactly the groups `GROUPS`.

    Raises:
        ConfigError: a group is missing or unknown.
    """
    unknown = [name for name in config if name not in GROUPS]
    if unknown:
        raise ConfigError(
            "\n".join(
                f"there is no group '{name}'.{did_you_mean(name, GROUPS)} Groups: {', '.join(GROUPS)} ({where(name)})."
                for name in unknown
            )
        )
    missing = [name for name in GROUPS if name not in config]
    if missing:
        raise ConfigError("\n".join(f"the group '{name}' is missing: type {name}=..." for name in missing))
    invalid = [name for name in NAMED_GROUPS if config[name] and not isinstance(config[name], Mapping)]
    if invalid:
        raise ConfigError("\n".join(f"{name}={config[name]}: a group of named options is needed." for name in invalid))


def _require_names(group: str, named: Mapping[str, Any], where: Where) -> None:
    """Rejects the settings of one option where there should be options by name.

    Raises:
        ConfigError: a file of `conf/GROUP/` gives no name to its option.
    """
    if isinstance(named.get("_target_"), str):
        file = where(f"{group}._target_").partition(":")[0]
        name = PurePath(file).stem
        remedy = f"Begin it with `# @package {group}.{name}`"
        if group == "metric":
            remedy = f"Write `{name}:` above it, and indent it"
        raise ConfigError(f"{group}._target_={named['_target_']}: {file} gives its option no name. {remedy}.")


def build_group(path: str, node: object, where: Where) -> Spec:
    """Builds the validated spec of a group, or of one member of a named group.

    Args:
        path: path in the configuration, e.g. "optimizer" or "logger.console".
        node: plain nested dicts with a `_target_`.
        where: returns the file that sets a setting, for messages.

    Raises:
        ConfigError: a setting is invalid; the message has one line for each error.
    """
    group = path.partition(".")[0]
    return build_spec(node, path, GROUPS[group], where, WRAPPERS.get(group))


def _spec_builder(path: str, node: object, where: Where) -> Callable[[], Spec]:
    return lambda: build_group(path, node, where)
