"""Restores the description of an earlier run from its checkpoint, with this command's overrides on top."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, Mapping, Sequence, Set, Tuple, Union

from omegaconf import OmegaConf

from mxtrain.checkpoint import Checkpoint, open_checkpoint, require_run_state
from mxtrain.checkpoint.folder import run_dir_of
from mxtrain.composing.composer import Composed, Composer
from mxtrain.composing.config_files import is_change
from mxtrain.composing.environment import describe_here
from mxtrain.composing.moved_data import find_data
from mxtrain.config.specs import flatten
from mxtrain.config.trust import require_trusted
from mxtrain.errors import ConfigError, NoCheckpoint, did_you_mean
from mxtrain.runtime import MACHINE_FIELDS, REMOVED_FIELDS
from mxtrain.terminal.program import program
from mxtrain.training.fold_results import read_folds
from mxtrain.training.restored_run import RestoredRun

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config

TRAINING_GROUPS = (
    "optimizer",
    "lr_scheduler",
    "early_stopping",
    "checkpoint",
    "callback",
    "logger",
    "trainer",
    "distillation",
)
"""Groups that only training uses."""
UNUSED_IN_EVALUATION = (*TRAINING_GROUPS, "dataset.batch_size", "dataset.augment")
"""Groups and settings without effect on an evaluation."""
UNUSED_BY_COMMAND: Dict[str, Tuple[str, ...]] = {
    **dict.fromkeys(("eval", "average", "export", "slim"), UNUSED_IN_EVALUATION),
    "predict": (*UNUSED_IN_EVALUATION, "loss", "metric"),
}
"""Command -> groups and settings without effect on it."""
INSTEAD = {
    "trainer.limit_val_batches": ", or type limit_batches=N to measure a part of the split",
    "dataset.batch_size": ", or type dataset.eval_batch_size=N",
}
"""Setting -> advice on what to type instead."""

PLACEMENT = ("parallel", "kvstore", "cluster")
DISTILLATION = "distillation"
"""Group that names a teacher network, which only training needs."""
OBSERVERS = ("callback", "logger")
"""Groups whose classes only observe training. `eval` and `predict` do not import these classes."""


def refuse_unused_settings(overrides: Sequence[str], command: str) -> None:
    """Rejects settings that only training uses.

    Raises:
        ConfigError: there are such settings; the message has a line for each.
    """
    wrong = []
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".")
        if any(key == name or key.startswith(f"{name}.") for name in UNUSED_BY_COMMAND[command]):
            instead = INSTEAD.get(key, "") if command == "eval" or key.startswith("dataset.") else ""
            wrong.append(f"{word}: `{command}` does not train, so nothing would come of it. Leave it out{instead}.")
    if wrong:
        raise ConfigError("\n".join(wrong))


def restore(
    path: Union[str, os.PathLike[str]],
    *,
    which: str = "best",
    overrides: Sequence[str] = (),
    config_dirs: Sequence[str] = (),
    trust_code: bool = False,
    command: str = "eval",
    settings: Collection[str] = (),
    objects: Mapping[str, Any] = MappingProxyType({}),
    replace: Callable[[Config], Mapping[str, Config]] = lambda config: {},
) -> RestoredRun:
    """Opens the run or checkpoint at a path, with `overrides` of its description. Imports no MXNet.

    Args:
        path: run directory or checkpoint directory.
        which: "best" or "last" checkpoint of a run.
        overrides: e.g. "dataset.root=FOLDER", without the settings of a command.
        config_dirs: folders of the user's own groups and options.
        trust_code: whether classes that only the checkpoint names may be imported and called.
        command: name of the command, for messages; selects the settings in `UNUSED_BY_COMMAND`, which are rejected.
        settings: names of the command's own settings, for suggestions.
        objects: path of a setting -> Python object that replaces its placeholder.
        replace: function (configuration of the run) -> groups that replace those of the run before overrides apply.

    Raises:
        CheckpointError: there is no usable checkpoint.
        ConfigError: an override is wrong or would change the inputs of the network, or the checkpoint names code that
            was not declared trusted.
    """
    if command in UNUSED_BY_COMMAND:
        refuse_unused_settings(overrides, command)
    checkpoint = open_latest(os.fspath(path), which, command)
    config: Dict[str, Any] = dict(checkpoint.state["run"]["description"])
    with Composer(config_dirs) as composer:
        config = for_one_device(config, composer)
        if not trust_code:
            # A typed mapping is merged into the checkpoint's, whose other keys must still be checked.
            given = [o.key_or_group for o in composer.parse(overrides) if not isinstance(o.value(), dict)]
            # Checked before anything in it is looked up in the environment, imported or set.
            require_trusted(config, str(checkpoint.path), command, given, config_dirs)
        config = apply_overrides({**config, **replace(config)}, overrides, composer, settings)
        if any(o.key_or_group.split(".")[0] == "metric" for o in composer.parse(overrides)):
            config = monitor_loss(config)

    def where(path: str) -> str:
        return f"the run's own {path.split('.')[0]}"

    names = names_of(overrides)
    description = describe_here(config, where, objects=objects)
    needs_data = command in ("eval", "replay")
    description = find_data(run_dir_of(checkpoint.path), description, names, needs_data=needs_data)
    return RestoredRun.of(checkpoint, description, names)


def open_latest(path: str, which: str, command: str) -> Checkpoint:
    """Opens the checkpoint of a run. Prints warnings about skipped damaged checkpoints to standard error.

    Raises:
        NoCheckpoint: there is none; the message says what to type instead.
        CheckpointError: it cannot be used, or holds no run.
    """
    try:
        checkpoint = open_checkpoint(path, which=which, report=lambda text: print(f"warning: {text}", file=sys.stderr))
    except NoCheckpoint as error:
        folds = (read_folds(Path(path)) or {"runs": []})["runs"]
        if folds:
            name = shlex.quote(os.path.join(path, folds[0]["run"]))
            raise NoCheckpoint(
                f"{path} holds the folds of a cross validation. Name one of its {len(folds)} runs: {program()} "
                f"{command} {name}"
            ) from None
        raise NoCheckpoint(f"{error}{latest_runs(command)}") from None
    require_run_state(checkpoint)
    return checkpoint


def for_one_device(config: Config, composer: Composer) -> Dict[str, Any]:
    """Returns the configuration of a run with the default placement, and without callbacks and loggers.

    Commands that use a trained run compute on one device, unless overrides choose another placement.
    """
    default = composer.compose([]).config
    changed = {**config, **{group: default[group] for group in (*PLACEMENT, DISTILLATION)}}
    changed.update({group: {} for group in OBSERVERS})
    if "runtime" in changed:  # otherwise validation reports that it is missing
        changed["runtime"] = on_this_machine(changed["runtime"], default["runtime"])
    return changed


def on_this_machine(recorded: object, default: Config) -> object:
    """Returns the runtime settings of a run, with defaults for settings that depend on the machine, such as threads.

    Args:
        recorded: runtime settings of the run, not validated yet.
        default: the default runtime settings.
    """
    if not isinstance(recorded, Mapping):
        return recorded  # the validation of the description rejects it
    kept = {name: value for name, value in recorded.items() if name not in REMOVED_FIELDS}
    runtime = {**kept, **{name: default[name] for name in MACHINE_FIELDS if name in kept}}
    if isinstance(runtime.get("env"), Mapping):
        runtime["env"] = {name: value for name, value in runtime["env"].items() if name not in MACHINE_FIELDS.values()}
    return runtime


def monitor_loss(config: Config) -> Dict[str, Any]:
    """Returns `config` with the loss as monitored value, since the monitored metric may not be computed now."""
    monitored = dict(config)
    for group in ("trainer", "early_stopping"):
        settings = config.get(group)
        if isinstance(settings, Mapping) and "monitor" in settings:
            monitored[group] = {**settings, "monitor": "val/loss"}
    return monitored


def apply_overrides(
    config: Config, overrides: Sequence[str], composer: Composer, settings: Collection[str] = ()
) -> Dict[str, Any]:
    """Applies overrides to `config`: recomposes groups for which an option is chosen, and replaces single values.

    Args:
        config: configuration of the run.
        overrides: overrides to apply.
        composer: composes groups.
        settings: names of the command's settings, for suggestions.

    Raises:
        ConfigError: there is no such group, option or setting.
    """
    groups = composer.groups()
    parsed = composer.parse(overrides)
    chosen = {override.key_or_group for override in parsed if override.key_or_group in groups}
    amended = OmegaConf.create(dict(config))
    composed: Dict[str, Composed] = {}
    for group in chosen:
        group_words = [o.input_line for o in parsed if o.key_or_group.split(".")[0] == group]
        composed[group] = composer.compose(group_words)
        amended[group] = composed[group].config[group]
    existing = flatten(OmegaConf.to_container(amended))
    for override in parsed:
        key = override.key_or_group
        if key.split(".")[0] in chosen:
            continue
        if is_change(override) and key not in existing:
            near = did_you_mean(key, [*settings, *existing, *groups])
            if "." in key or not settings:
                raise ConfigError(f"there is no '{key}'.{near}")
            raise ConfigError(f"there is no setting '{key}'.{near} This command takes {', '.join(sorted(settings))}.")
        OmegaConf.update(amended, key, override.value(), force_add=True)
    return OmegaConf.to_container(amended, resolve=True)


def names_of(overrides: Sequence[str]) -> Set[str]:
    """Returns the groups and settings that overrides change."""
    return {word.lstrip("+").partition("=")[0] for word in overrides}


def latest_runs(command: str) -> str:
    """Returns the end of a message: commands for the latest runs in `outputs`; empty if there are none."""
    recent = sorted(Path("outputs").glob("*/*/checkpoints"), key=lambda path: path.lstat().st_mtime, reverse=True)[:5]
    lines = "".join(f"\n  {program()} {command} {shlex.quote(str(path.parent))}" for path in recent)
    return f" The latest here:{lines}" if lines else ""
