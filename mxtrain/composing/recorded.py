"""Writes the description of a recorded run as overrides, which compose it again on this version's configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Sequence, Tuple

import yaml

from mxtrain.archive.meta import RecordedRun
from mxtrain.composing.composer import Composed, Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.composing.moved_data import find_data
from mxtrain.config.groups import GROUPS, NAMED_GROUPS, Description
from mxtrain.config.override_text import key_of, written
from mxtrain.config.placeholders import placeholders_in
from mxtrain.config.trust import require_trusted
from mxtrain.data.loading.described_paths import named_paths
from mxtrain.errors import ConfigError
from mxtrain.files.regular_files import read_regular_text

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config

KEY = re.compile(r"[A-Za-z_]\w*|\d+")


def compose_recorded(
    recorded: RecordedRun,
    overrides: Sequence[str],
    composer: Composer,
    config_dirs: Sequence[str] = (),
    trust_code: bool = False,
) -> Tuple[Composed, Description]:
    """Composes the description of a run again, with overrides.

    Args:
        recorded: the run.
        overrides: overrides of its description.
        composer: the configuration files here.
        config_dirs: folders of the user's own groups and options, whose classes are trusted.
        trust_code: whether classes that only meta.json names may be imported and called.

    Raises:
        ConfigError: an override is wrong, the description cannot be composed here, or it names code that was not
            declared trusted.
    """
    if not trust_code:
        given = [o.key_or_group for o in composer.parse(overrides) if not isinstance(o.value(), dict)]
        # Before anything in it is looked up in the environment, imported or set.
        require_trusted(recorded.description, str(recorded.path), "reproduce", given, config_dirs)
    if any(placeholders_in(recorded.description)):
        raise ConfigError(
            f"{recorded.path} was started from Python with objects, which meta.json does not contain. Run the program "
            "again."
        )
    groups = [group for group in composer.groups() if group in GROUPS]
    recorded_overrides = with_overrides(
        overrides_of(recorded.description, recorded.choices, composer), overrides, groups
    )
    composed, description = compose_and_check(composer, recorded_overrides)
    data = find_data(recorded.path, description, {key_of(word) for word in overrides}, needs_data=True)
    moved_overrides = moved_paths(description, data)
    if moved_overrides:
        composed, description = compose_and_check(composer, with_overrides(recorded_overrides, moved_overrides, groups))
    return composed, description


def moved_paths(recorded: Description, current: Description) -> List[str]:
    """Returns the overrides for paths of the dataset that `find_data` has changed."""
    old = named_paths(recorded.dataset)
    names = [name for name, paths in named_paths(current.dataset).items() if paths != old[name]]
    return [f"dataset.{name}={written(getattr(current.dataset, name))}" for name in names]


def overrides_of(config: Config, choices: Mapping[str, str], composer: Composer) -> List[str]:
    """Returns overrides that compose a recorded configuration.

    Args:
        config: the configuration of the run, with one entry per group.
        choices: the chosen option of each group. Unknown options are ignored: their settings are typed instead.
        composer: the configuration files here.

    Raises:
        ConfigError: the configuration cannot be composed here; names what is unknown.
    """
    unknown = [group for group in config if group not in GROUPS]
    if unknown:
        raise ConfigError(f"the run's description has the group '{unknown[0]}', which this version does not know.")
    recorded_overrides = []
    for group in GROUPS:
        options = composer.options(group)
        if group in NAMED_GROUPS:
            chosen = (_option_of(group, str(name), node, composer) for name, node in (config.get(group) or {}).items())
            recorded_overrides.append(f"{group}=[{','.join(filter(None, chosen))}]")
        elif choices.get(group) in options:
            recorded_overrides.append(f"{group}={choices[group]}")
    # Only settings that differ become overrides, so that the new run's overrides show the changes and not all defaults.
    base = composer.compose(recorded_overrides).config
    return [*recorded_overrides, *_changes(base, config)]


def _option_of(group: str, member: str, node: object, composer: Composer) -> str:
    """Returns the option that makes a member of a group with any number of options: its file names the member, which
    may be shared by several options, and the class. Empty if there is none."""
    target = node.get("_target_") if isinstance(node, Mapping) else None
    for option in sorted(composer.options(group), key=lambda name: name != member):
        file = composer.find_file(f"{group}/{option}")
        text = read_regular_text(file) if file else ""
        content = yaml.safe_load(text) or {}
        if not re.match(rf"# @package {group}\.{re.escape(member)}\s", text):  # else the file is the member itself
            content = content.get(member) or {}
        if isinstance(content, dict) and content.get("_target_") == target:
            return option
    return ""


def _changes(base: Config, target: Config) -> Iterator[str]:
    """Yields overrides for the settings of `target` that differ from `base`."""
    for path, value in _settings(target, ()):
        node: object = base
        for key in path:
            node = node.get(key, _ABSENT) if isinstance(node, Mapping) else _ABSENT
        # The type counts: 1, 1.0 and true are equal for Python, and mean different settings.
        if node is not _ABSENT and type(node) is type(value) and node == value:
            continue
        for key in path:
            if not KEY.fullmatch(key):
                raise ConfigError(f"the run's setting {'.'.join(path)} has a key that cannot be typed: {key!r}.")
        yield f"{'++' if node is _ABSENT else ''}{'.'.join(path)}={written(value)}"


_ABSENT = object()


def _settings(node: Mapping[str, object], path: Tuple[str, ...]) -> Iterator[Tuple[Tuple[str, ...], object]]:
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _settings(value, (*path, str(name)))
        elif len(path) > 0 or not isinstance(value, Mapping):  # a group without options is chosen as []
            yield (*path, str(name)), value


def with_overrides(recorded_overrides: Sequence[str], given: Sequence[str], groups: Sequence[str]) -> List[str]:
    """Returns recorded overrides with typed ones, which replace the same settings; a typed option replaces its whole
    group."""
    chosen = {key_of(word) for word in given}
    replaced: Dict[str, bool] = {
        word: key_of(word) in chosen or any(key in groups and key_of(word).startswith(f"{key}.") for key in chosen)
        for word in recorded_overrides
    }
    return [*(word for word in recorded_overrides if not replaced[word]), *given]
