"""Explains wrong overrides and suggests the right ones.

Hydra itself suggests adding a misspelt key with `+`, which would only make the typo a part of the configuration.

Reasons: docs/decisions/0029-error-messages.md.
"""

from __future__ import annotations

import difflib
import inspect
import re
from typing import Dict, Iterable, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple

import yaml
from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import DictConfig, OmegaConf

from mxtrain.composing.choices import renamed, wrong_choice
from mxtrain.composing.config_files import ConfigFiles, is_change, not_yaml, short
from mxtrain.composing.hydra_errors import range_outside_tune, reasons_of
from mxtrain.composing.setting_names import OTHER_NAMES
from mxtrain.config.groups import GROUPS, NAMED_GROUPS, PRESET_GROUPS, WRAPPERS
from mxtrain.config.specs import accepted_names, default_settings, flatten, import_target, own_spec
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.files.regular_files import read_regular_text
from mxtrain.types import Spec
from mxtrain.types.kinds import Gives, Takes

_MAX_ELSEWHERE = 3
"""Maximum number of options for other tasks that a message suggests; with more, the intended one is unclear."""
_CLOSE = 0.75
"""Ratio of `difflib` from which two names differ by little more than a typing error."""
_SAME = 0.9
"""Ratio of `difflib` from which two long names differ by one letter."""


class WrongOverrides(ConfigError):
    """Some overrides name settings, groups or options that do not exist.

    Attributes:
        right: the other overrides, which are valid.
    """

    def __init__(self, messages: Sequence[str], right: Sequence[str]):
        super().__init__("\n".join(dict.fromkeys(messages)))
        self.right = list(right)


# Overrides that are invalid by their form.


def refuse_sweeps(parsed: Sequence[Override], files: ConfigFiles) -> None:
    """Rejects overrides with several values outside of a sweep.

    Raises:
        ConfigError: an override gives several values.
    """
    for override in parsed:
        if override.is_sweep_override():
            text = override.input_line
            key, _, value = text.partition("=")
            # Hydra's own sweeper cannot go through an interval, which has no list of values.
            if isinstance(override.value(), IntervalSweep):
                raise ConfigError(range_outside_tune(text))
            several = f"{text} gives several values. Add -m (in Python: mxtrain.sweep) to train with each of them"
            if key in files.groups():  # only groups whose options can be combined take a list
                raise ConfigError(f"{several}{f', or write {key}=[{value}]' if key in NAMED_GROUPS else ''}.")
            quoted = f"\"{key}='{value}'\""
            raise ConfigError(f"{several}; write a list as {key}=[{value}], a text with commas as {quoted}.")


def refuse_deletions(parsed: Sequence[Override], files: ConfigFiles) -> None:
    """Rejects `~key` except for presets and for groups of any number of options (loggers, metrics, callbacks).

    Raises:
        ConfigError: a setting or a required group is deleted.
    """
    for override in parsed:
        key = override.key_or_group
        group, _, setting = key.partition(".")
        if not override.is_delete() or group in (*NAMED_GROUPS, *PRESET_GROUPS) or group == "hydra":
            continue
        if group not in files.groups():
            raise ConfigError(f"~{key}: there is no group '{group}'.{did_you_mean(group, files.groups())}")
        if setting:
            raise ConfigError(f"~{key}: a setting cannot be taken away. Give it a value: {key}=...")
        raise ConfigError(f"~{group}: this group is needed. {group} can be: {', '.join(files.options(group))}.")


def refuse_misplaced_presets(config: DictConfig, files: ConfigFiles) -> None:
    """Refuses presets without the first line `# @package _global_`: Hydra puts their settings below the group's name,
    where nothing reads them.

    Raises:
        ConfigError: the file of a chosen preset lacks the line.
    """
    for group in PRESET_GROUPS:
        if config.get(group) is None:
            continue
        option = config.hydra.runtime.choices.get(group)
        file = files.find_file(f"{group}/{option}")
        prefix = f"{short(file)}: " if file else f"{group}={option}: "
        raise ConfigError(
            f"{prefix}a preset needs the first line '# @package _global_'. Without it its settings are placed below "
            f"'{group}.', where nothing reads them."
        )


# Overrides of settings that do not exist.


def fit_open_mappings(
    parsed: Sequence[Override], files: ConfigFiles, error: Optional[Exception] = None
) -> List[Override]:
    """Adds the `++` that Hydra requires for new keys of mappings that accept any key (`model.options: {}`).

    Args:
        parsed: overrides that Hydra has refused.
        files: the configuration files.
        error: the error of Hydra.

    Raises:
        WrongOverrides: names all overrides that are wrong.
        ConfigError: Hydra's own message, if no single override is at fault.
    """
    groups = files.all_groups()
    wrong: List[str] = []
    # Choices of groups and options decide which settings exist, so the configuration is composed from them first.
    structural: List[Override] = []
    changes: List[Override] = []
    for override in parsed:
        message = wrong_choice(override, files)
        if message:
            wrong.append(message)
        else:
            (structural if override.key_or_group in groups or not is_change(override) else changes).append(override)
    try:
        config = files.load(structural)
    except Exception as structural_error:
        if wrong:
            raise WrongOverrides(wrong, []) from None
        _reword(structural_error, files, structural)
    existing = settings_of(config)
    fitted = _fit(changes, existing, parsed)
    for override in changes:
        if fitted[override.input_line] is None:
            wrong.append(unknown_key(override.key_or_group, existing, files, config))
    right = [fitted.get(o.input_line, o.input_line) for o in (*structural, *changes)]
    if wrong:
        raise WrongOverrides(wrong, [text for text in right if text is not None])
    if all(fitted[override.input_line] == override.input_line for override in changes):
        _reword(error or ConfigError("no single override is at fault"), files, parsed)
    return files.parse([fitted.get(o.input_line) or o.input_line for o in parsed])


def settings_of(config: DictConfig) -> Dict[str, object]:
    """Returns dotted path -> value of every setting, including Hydra's own."""
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, [name for name in config if name != "hydra"]))
    hydra = OmegaConf.to_container(config.hydra)
    return {**flatten(plain), **flatten({"hydra": hydra})}


def _fit(
    changes: Sequence[Override], existing: Mapping[str, object], parsed: Sequence[Override]
) -> Dict[str, Optional[str]]:
    """Returns override -> the text to pass to Hydra; None if the setting does not exist.

    A setting exists if the configuration lists it, if it is below a mapping that accepts any key (`model.options`), or
    if the `_target_` accepts it although its YAML file does not list it.
    """
    targets = {path: value for path, value in existing.items() if path.endswith("._target_")}
    targets.update({o.key_or_group: o.value() for o in parsed if o.key_or_group.endswith("._target_")})
    fitted: Dict[str, Optional[str]] = {}
    for override in changes:
        key, text = override.key_or_group, override.input_line
        exists = key in existing or any(path.startswith(key + ".") for path in existing)
        empty = (path for path, value in existing.items() if value == {} and not _takes_no_settings(path, targets))
        is_open = any(key.startswith(path + ".") for path in empty)
        is_open = is_open or _accepts(key, targets)
        # Hydra merges mappings, and an empty one takes no new keys without `++`.
        fills = existing.get(key) == {} and isinstance(override.value(), Mapping)
        fitted[text] = text if exists and not fills else "++" + text if fills or is_open else None
    return fitted


def _takes_no_settings(path: str, targets: Mapping[str, object]) -> bool:
    """Returns True if an empty mapping is the node of a class without settings, so that no key may be added to it."""
    parent, _, name = path.rpartition(".")
    try:
        fields = getattr(import_target(str(targets[parent + "._target_"]), parent), "model_fields", {})
    except (KeyError, ConfigError):
        return False
    kind = fields[name].annotation if name in fields else None
    return inspect.isclass(kind) and issubclass(kind, Spec) and not kind.model_fields


def _accepts(key: str, targets: Mapping[str, object]) -> bool:
    """Returns True if the `_target_` of the nearest node above a setting accepts it, directly or in a nested spec."""
    node = _node_of_target(key, targets)
    if node is None:
        return False
    *nested, name = key[len(node) + 1 :].split(".")
    return name in _accepted_below(node, nested, targets)


def _node_of_target(key: str, targets: Mapping[str, object]) -> Optional[str]:
    """Returns the path of the nearest node with a `_target_` above a setting; None if there is no such node."""
    node = key.rpartition(".")[0]
    while node and f"{node}._target_" not in targets:
        node = node.rpartition(".")[0]
    return node or None


def _accepted_below(node: str, nested: Sequence[str], targets: Mapping[str, object]) -> List[str]:
    """Returns the settings that the `_target_` of a node accepts, or those of the nested spec at `nested`."""
    group = node.partition(".")[0]
    wrapper = WRAPPERS.get(group) or GROUPS.get(group)
    try:
        target = import_target(str(targets[node + "._target_"]), node)
    except ConfigError:
        return []  # validating the description reports it
    return [] if wrapper is None else accepted_names(target, wrapper, nested)


def unknown_key(key: str, existing: Mapping[str, object], files: ConfigFiles, config: DictConfig) -> str:
    """Returns the message for a setting that does not exist: the nearest names, and the settings of its group."""
    existing = {**_settings_of_own_class(key, existing), **existing}
    existing = {path: value for path, value in existing.items() if not path.endswith("._target_")}
    group, _, field = key.partition(".")
    groups = ("hydra", *files.groups())
    suggestions = nearest_settings(key, existing)
    if group not in groups:
        near = did_you_mean(group, groups)
        kind, name = ("group", group) if near or field or not suggestions else ("setting", key)
        if field or not near or key in OTHER_NAMES:
            near = did_you_mean_any(suggestions) or near
        location = short(files.search_path[0])
        return f"there is no {kind} '{name}'.{near} Groups: {', '.join(files.groups())} ({location}/)."
    if group == "hydra":
        return f"there is no '{key}'.{did_you_mean_any(suggestions)} `--cfg hydra` shows Hydra's settings."
    if not field:
        return f"'{key}' is a group: choose an option. It can be: {', '.join(files.options(key))}."
    parent = key.rpartition(".")[0]
    fields = [path[len(parent) + 1 :] for path in existing if path.startswith(parent + ".")]
    if not fields:
        parent, fields = group, [path[len(group) + 1 :] for path in existing if path.startswith(group + ".")]
    elsewhere = options_with(group, field, files, config)
    is_near = any(path.startswith(parent + ".") for path in suggestions)
    is_close = any(_is_close(field, path.rpartition(".")[2]) for path in suggestions)
    if elsewhere and not is_close:  # the name is right, but the chosen option has no similar setting
        is_near = False
    elif not is_close and "." not in field:
        fields_elsewhere = [name for _, names in fields_of_options(group, files) for name in names]
        for name in difflib.get_close_matches(field, fields_elsewhere, n=1, cutoff=_CLOSE):
            elsewhere = options_with(group, name, files, config)
            if elsewhere:
                suggestions, is_near = [f"{group}.{name}"], True
    near = f"{did_you_mean_any(suggestions) if is_near or not elsewhere else ''}{elsewhere}"
    allowed, location = ", ".join(fields) or "nothing", files.file_of(group, config.hydra)
    return f"there is no '{key}'.{near} {parent} takes: {allowed} ({location})."


def _settings_of_own_class(key: str, existing: Mapping[str, object]) -> Dict[str, object]:
    """Returns the settings of the class at the nearest node above a setting.

    They are missing in `existing` for a user's own class, which composing does not import.
    """
    node = _node_of_target(key, existing)
    return {} if node is None else {f"{node}.{name}": None for name in _accepted_below(node, [], existing)}


def refuse_unknown(key: str, files: ConfigFiles, config: DictConfig) -> NoReturn:
    """Rejects a setting or group that the configuration does not have.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(unknown_key(key, settings_of(config), files, config))


def setting_for_flag(name: str) -> str:
    """Returns the setting that corresponds to another program's flag of this name, or an empty string."""
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    with ConfigFiles() as files:
        if name in files.groups():
            return name
        settings = [path for path in settings_of(files.load([])) if not path.startswith("hydra.")]
    same = [path for path in settings if path.rpartition(".")[2] == name]
    return (same or [path for path in nearest_settings(name, settings)] or [""])[0]


def nearest_settings(key: str, existing: Iterable[str]) -> List[str]:
    """Returns up to three settings that were probably meant, best first: of the same parent, else of all groups.

    If the group of `key` exists, settings of other groups need the same name, but for one letter of a long one.
    """
    existing = list(existing)
    parent, _, leaf = key.rpartition(".")
    if OTHER_NAMES.get(leaf) in existing:
        return [OTHER_NAMES[leaf]]
    inside = [path for path in existing if parent and path.startswith(parent + ".")]
    own_settings = [path for path in existing if key.startswith("hydra") or not path.startswith("hydra.")]
    has_group = any(path.startswith(key.partition(".")[0] + ".") for path in existing)
    for paths in (inside, own_settings):
        is_elsewhere = has_group and paths is own_settings
        by_leaf: Dict[str, List[str]] = {}
        for path in paths:
            by_leaf.setdefault(path.rpartition(".")[2].lower(), []).append(path)
        near = difflib.get_close_matches(leaf.lower(), by_leaf, n=1, cutoff=_SAME if is_elsewhere else 0.6)
        # `difflib` finds no `batch_size` for `bs`: too few letters are equal.
        near = near or [name for name in by_leaf if not is_elsewhere and _abbreviates(leaf.lower(), name)]
        matches = [path for name in near for path in by_leaf[name]]
        if matches:
            return sorted(matches, key=lambda path: -difflib.SequenceMatcher(None, key, path).ratio())[:3]
    return []


def _abbreviates(short_name: str, name: str) -> bool:
    """Returns True if `short_name` is an abbreviation: at least two letters, the same first letter as `name`, and all
    letters appear in `name` in the same order, e.g. `bs` for `batch_size`."""
    letters = iter(name)
    return len(short_name) > 1 and name[:1] == short_name[0] and all(letter in letters for letter in short_name)


def did_you_mean_any(settings: Sequence[str]) -> str:
    """Returns ` Did you mean 'a' or 'b'?`, or an empty string."""
    return f" Did you mean {' or '.join(repr(path) for path in settings)}?" if settings else ""


def options_with(group: str, field: str, files: ConfigFiles, config: DictConfig) -> str:
    """Returns a sentence that names other options of the group with this field, preferably of the chosen task."""
    task = import_target(str(config.task["_target_"]), "task").takes if "task" in config else Takes()
    having: List[str] = []
    elsewhere: List[str] = []
    for option, fields in fields_of_options(group, files):
        if field in fields:
            (having if _is_for(fields, task) else elsewhere).append(option)
    if not having and 0 < len(elsewhere) <= _MAX_ELSEWHERE:
        return f" It belongs to {group}={'|'.join(elsewhere)}, for another task."
    return f" It belongs to {group}={'|'.join(having)}." if having else ""


def fields_of_options(group: str, files: ConfigFiles) -> Iterator[Tuple[str, Dict[str, object]]]:
    """Yields each option of a group with its settings: those of its file, and the defaults of a class of mxtrain."""
    for option in files.options(group):
        file = files.find_file(f"{group}/{option}")
        settings = yaml.safe_load(read_regular_text(file)) if file else None
        if isinstance(settings, dict):
            settings = settings.get(group, settings)  # nested below the group's name, or at the top level
        if isinstance(settings, dict):
            spec = own_spec(settings.get("_target_"))
            yield option, flatten({**(default_settings(spec) if spec is not None else {}), **settings})


def _is_close(one: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio() >= _CLOSE


def _is_for(settings: Mapping[str, object], task: Takes) -> bool:
    """Returns True if an option of a group gives or takes targets of a task."""
    try:
        target = import_target(str(settings.get("_target_", "")), "")
    except ConfigError:
        return True
    if hasattr(target, "gives"):
        return isinstance(target.gives, Gives) and any(map(task.takes_target, target.gives.targets))
    takes = getattr(target, "takes", Takes())  # a user's own network or loss may be of any class
    return not task.targets or any(map(takes.takes_target, task.targets))


# Errors of Hydra and YAML.


def _reword(error: Exception, files: ConfigFiles, overrides: Sequence[Override]) -> NoReturn:
    """Rewords an error of Hydra or YAML into a sentence with the file and the remedy.

    Raises:
        ConfigError: always.
    """
    if isinstance(error, yaml.YAMLError):
        raise not_yaml(error) from None
    text = str(error)
    missing = re.search(r"In '([^']+)': Could not find '([^']+)/([^'/]+)'", text)
    if missing:
        location, group, option = missing.groups()
        options = files.options(group)
        allowed = f"{did_you_mean(option, options)} {group} can be: {', '.join(options)}."
        no_group = f"{did_you_mean(group, files.groups())} Groups: {', '.join(files.groups())}."
        message = f"there is no {group}={option}.{allowed}" if options else f"there is no group '{group}'.{no_group}"
        message = renamed(group, option, files) or message
        culprit = _preset_with(group, option, files, overrides) or place_of(location, files)
        raise ConfigError(f"{culprit}: {message}") from None
    override = re.search(r"(?:In '([^']+)': )?Could not override '([^']+)'", text)
    if override:
        location, key = override.groups()
        prefix = f"{place_of(location, files)}: " if location else ""
        near = did_you_mean(key, files.all_groups())
        raise ConfigError(f"{prefix}there is no group '{key}' to override.{near}") from None
    deletion = re.search(r"Could not delete(?: from config)?\. '([^']+)'", text)
    if deletion:
        candidates = [o for group in NAMED_GROUPS for o in (f"{group}.{name}" for name in files.options(group))]
        near = did_you_mean(deletion[1], candidates)
        raise ConfigError(f"~{deletion[1]}: there is no such group or setting to remove.{near}") from None
    raise not_composed(error) from None


def not_composed(error: Exception) -> ConfigError:
    """Returns the error for a configuration that Hydra cannot compose, with Hydra's reasons."""
    return ConfigError(f"the configuration cannot be composed: {reasons_of(error)}.")


def _preset_with(group: str, option: str, files: ConfigFiles, overrides: Sequence[Override]) -> str:
    """Returns the file of the chosen preset that selects an option, or "". Hydra's message names the overridden file
    instead."""
    presets = [o for o in overrides if o.key_or_group in PRESET_GROUPS and not o.is_delete()]
    files_of_presets = [files.find_file(f"{o.key_or_group}/{o.value()}") for o in presets]
    selects = re.compile(rf"/?{re.escape(group)}\s*:.*\b{re.escape(option)}\b")
    return next((short(file) for file in files_of_presets if file and selects.search(read_regular_text(file))), "")


def place_of(config_path: str, files: ConfigFiles) -> str:
    """Returns the path of a configuration such as `model/lenet` for messages."""
    file = files.find_file(config_path)
    return short(file) if file else config_path
