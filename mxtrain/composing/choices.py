"""Explains a wrong override `group=option`, and suggests the option that was meant.

A line `# Was called: NAME.` in an option's YAML file answers an old name with the new one, and `# Also called: NAME,
NAME.` the names of other programs. Old names are not accepted: two names for one option would be two names in all runs
that are compared.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Pattern, Sequence, Tuple

from hydra.core.override_parser.types import Override

from mxtrain.composing.config_files import ConfigFiles, short
from mxtrain.config.groups import NAMED_GROUPS, PRESET_GROUPS
from mxtrain.config.specs import shown
from mxtrain.errors import did_you_mean, path_override
from mxtrain.types import expand_path

READS_PATHS = re.compile(r"^# For paths (\S+): (.+)$", re.MULTILINE)
"""Comment in the file of an option that says for which paths it is meant: comma-separated extensions, `folder`, or
`folder/NAME` for a folder that contains NAME; then the arguments to type, with PATH for the path."""


def hint_for_path(group: str, option: str, files: ConfigFiles) -> str:
    """Returns ` It is a path: type ...` if an option is a path; otherwise an empty text.

    Args:
        group: a group, e.g. "dataset".
        option: the typed option.
        files: configuration files of mxtrain and of the user.
    """
    path = Path(expand_path(option))
    ending, is_folder = path.suffix.lower(), path.is_dir()
    known = list(_lines(group, files))
    endings = {".py", ".yaml"}.union(*(kinds for kinds, _ in known))
    if not (is_folder or "/" in option or path.is_file() or ending in endings):
        return ""
    commands: List[str] = []
    if ending == ".py" and not is_folder:
        commands = [f"{group}._target_={path.stem}.NAME"]
    elif ending == ".yaml" and not is_folder:
        above = os.path.relpath(path.parent.parent) if path.parent.name == group else "FOLDER"
        place = "" if above != "FOLDER" else f" with the file as FOLDER/{group}/{path.name}"
        commands = [f"--config-dir {shlex.quote(above)} {group}={path.stem}{place}"]
    else:
        within = {f"folder/{name}" for name in os.listdir(path)} if is_folder else set()
        kind = "folder" if is_folder or not ending else ending
        found = [command for kinds, command in known if within & set(kinds)] or [
            command for kinds, command in known if kind in kinds
        ]
        commands = [re.sub(r"(\S+)=PATH", lambda word: path_override(word[1], option), command) for command in found]
    if not commands:
        return f" It is a path, and {group} takes the name of an option: see `mxtrain explain {group}`."
    return f" It is a path: type {', or '.join(commands)}."


def _lines(group: str, files: ConfigFiles) -> Iterator[Tuple[List[str], str]]:
    """Yields the kinds of paths and the arguments to type for them, for all options of a group."""
    for option in files.options(group):
        file = files.find_file(f"{group}/{option}")
        for kinds, command in READS_PATHS.findall(file.read_text(encoding="utf-8", errors="replace")) if file else ():
            yield kinds.split(","), command


ALSO_CALLED = re.compile(r"^# Also called: (.+)\.$", re.MULTILINE)
WAS_CALLED = re.compile(r"^# Was called: (.+)\.$", re.MULTILINE)
TRACKERS = ("neptune", "dvclive", "swanlab", "trackio")
"""Services that other programs log to."""
EXAMPLES = {"aim": "aim", "clearml": "clearml", "comet": "comet", "comet_ml": "comet", "cometml": "comet"}
"""Names of trackers that are examples, not options -> name of the example."""
NO = ("none", "null", "false", "no", "disabled", "disable", "off")
"""Words by which a group is meant to be switched off."""


def drop_absent_presets(parsed: Sequence[Override]) -> List[Override]:
    """Drops `debug=null` and the like, which choose no preset, and the choices of that preset before them."""
    absent = [
        number
        for number, override in enumerate(parsed)
        if override.key_or_group in PRESET_GROUPS and not override.is_delete() and override.value() is None
    ]
    # The last word counts, as it does for every other override.
    last = {parsed[number].key_or_group: number for number in absent}
    return [override for number, override in enumerate(parsed) if number > last.get(override.key_or_group, -1)]


def wrong_choice(override: Override, files: ConfigFiles) -> Optional[str]:
    """Returns the message for a wrong `group=option`; None if nothing is wrong, or it chooses no option of a group."""
    key = override.key_or_group
    if override.is_delete() or override.is_sweep_override() or key not in files.all_groups():
        return None
    options = files.options(key)
    if override.is_add() and key in files.groups():
        return f"{override.input_line}: '{key}' is part of every description; write {override.input_line.lstrip('+')}."
    value = override.value()
    are_names = isinstance(value, list) and all(isinstance(option, str) for option in value)
    if are_names and key not in (*NAMED_GROUPS, *PRESET_GROUPS) and key in files.groups():
        return _one_of_a_list(key, value)
    for option in value if isinstance(value, list) else [value]:
        if not isinstance(option, str) or (option not in options and "${" not in option):
            return _no_option(key, option, files, options)
    return None


def _one_of_a_list(group: str, value: Sequence[object]) -> str:
    names = [shown(option) for option in value]
    if len(names) > 1:
        return f"{group}=[{','.join(names)}]: {group} is one option. To train with each: -m {group}={','.join(names)}."
    return f"{group}=[{','.join(names)}]: {group} is one option, without brackets: {group}={''.join(names) or 'NAME'}."


def renamed(group: str, option: str, files: ConfigFiles) -> str:
    """Returns the message for an option that has another name now; an empty string for any other."""
    options = files.options(group)
    new = other_names(group, options, files, WAS_CALLED).get(option)
    alias = other_names(group, options, files).get(option)
    also = f" Or did you mean {group}={alias}?" if alias else ""
    return f"{group}={option} is now {group}={new}.{also}" if new else ""


def _no_option(group: str, option: object, files: ConfigFiles, options: Sequence[str]) -> str:
    message = renamed(group, shown(option), files)
    if message:
        return message
    folder = next((f for f in files.search_path if (f / group).is_dir()), None)
    location = f" ({short(folder / group)}/)" if folder else ""
    hint = hint_for(group, option, options, files)
    return f"{group}={shown(option)}: there is no such option.{hint} {group} can be: {', '.join(options)}{location}."


def other_names(
    group: str, options: Sequence[str], files: ConfigFiles, line: Pattern[str] = ALSO_CALLED
) -> Dict[str, str]:
    """Returns other name -> option, from lines `# Also called: NAME, NAME.` in the files of a group's options.

    With `line=WAS_CALLED`, returns former names of options.
    """
    option_of: Dict[str, str] = {}
    for option in options:
        file = files.find_file(f"{group}/{option}")
        for names in line.findall(file.read_text(encoding="utf-8", errors="replace")) if file else ():
            option_of.update(dict.fromkeys(names.split(", "), option))
    return option_of


def hint_for(group: str, option: object, options: Sequence[str], files: ConfigFiles) -> str:
    """Returns ` Did you mean ...?` for an option that does not exist; empty if no name is near."""
    word = shown(option).lower()
    if word in NO and group in NAMED_GROUPS:
        return f" To have none: {group}=[]."
    if word in NO and group in PRESET_GROUPS:
        return f" To have none, leave {group} out."
    path = hint_for_path(group, shown(option), files) if isinstance(option, str) else ""
    if path:
        return path
    suggestion = other_names(group, options, files).get(word) or ("off" if word in NO and "off" in options else "")
    if suggestion in options:
        return f" Did you mean '{suggestion}'?"
    same = [name for name in options if name.lower() == word]
    if same:
        return f" Did you mean '{same[0]}'?"
    if group == "model":
        hint = next(filter(None, (kind.hint_for(word) for kind in files.named_models())), "")
        if hint:
            return f" {hint}"
    if group == "logger" and word in EXAMPLES:
        name = EXAMPLES[word]
        return (
            f" It is an example: copy examples/trackers/{name}_tracker.py and conf/logger/{name}.yaml beside it, and "
            "type --config-dir conf."
        )
    if group == "logger" and word in TRACKERS:
        return (
            " It has no logger here: logger=tensorboard writes event files, which it may import, and "
            "docs/training/trackers.md tells how to write a tracker."
        )
    other = next((name for name in files.groups() if name != group and is_start_of(word, name)), None)
    return f" '{other}' is a group by itself: type {other}=OPTION." if other else did_you_mean(word, options)


def is_start_of(word: str, name: str) -> bool:
    """Returns True if a word begins a name, as "early" and "early_stop" begin "early_stopping"."""
    return len(word) >= 4 and name.startswith(word)
