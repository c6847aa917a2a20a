"""Explains an override that gives a path as the option of a group, as in `dataset=FOLDER` or `model=net.params`."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Iterator, List, Tuple

from mxtrain.composing.config_files import ConfigFiles
from mxtrain.errors import typed_name
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
        found = [words for kinds, words in known if within & set(kinds)] or [
            words for kinds, words in known if kind in kinds
        ]
        commands = [re.sub(r"(\S+)=PATH", lambda word: _typed(word[1], option), words) for words in found]
    if not commands:
        return f" It is a path, and {group} takes the name of an option: see `mxtrain explain {group}`."
    return f" It is a path: type {', or '.join(commands)}."


def _typed(setting: str, path: str) -> str:
    return f"{setting}={path}" if re.fullmatch(r"[\w./~-]*[/a-zA-Z_]", path) else typed_name(setting, path)


def _lines(group: str, files: ConfigFiles) -> Iterator[Tuple[List[str], str]]:
    """Yields kinds of paths and the words for them, of all options of a group."""
    for option in files.options(group):
        file = files.find_file(f"{group}/{option}")
        for kinds, words in READS_PATHS.findall(file.read_text(encoding="utf-8", errors="replace")) if file else ():
            yield kinds.split(","), words
