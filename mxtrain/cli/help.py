"""The text of `mxtrain --help`."""

from __future__ import annotations

import string
import textwrap
from typing import Mapping, Optional, Sequence

from mxtrain.cli.commands import command_lines
from mxtrain.config.locations import conf_dir
from mxtrain.config.plugins import find_plugins
from mxtrain.terminal.program import with_program_name

WIDTH = 110


def default_help() -> Optional[str]:
    """Returns the help of the default configuration; None if plug-ins add to it.

    Hydra would compose the configuration for it, which takes five times as long as everything else.
    """
    import yaml

    if find_plugins():
        return None
    conf = conf_dir()
    entries = yaml.safe_load((conf / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    chosen = {group: option for entry in entries if isinstance(entry, dict) for group, option in entry.items()}
    texts = yaml.safe_load((conf / "hydra" / "help" / "mxtrain.yaml").read_text(encoding="utf-8"))
    template = texts["template"]
    for name in ("header", "footer"):
        template = template.replace(f"${{hydra.help.{name}}}", texts[name])
    options = {
        folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in conf.iterdir() if folder.is_dir()
    }
    return help_text(
        template,
        options,
        {group: option if isinstance(option, list) else [option] for group, option in chosen.items()},
    )


def help_text(template: str, options: Mapping[str, Sequence[str]], chosen: Mapping[str, Sequence[object]]) -> str:
    """Returns the help.

    Args:
        template: text of conf/hydra/help/mxtrain.yaml.
        options: names of the options of each group.
        chosen: the chosen options of each group.
    """
    groups = sorted(options, key=lambda group: (group in ("experiment", "debug"), group))
    indent = max(map(len, groups)) + 4
    lines = []
    for group in groups:
        words = "  ".join(f"{name}*" if name in chosen.get(group, ()) else name for name in options[group])
        lines += textwrap.wrap(
            words,
            WIDTH,
            initial_indent=f"  {group:<{indent - 2}}",
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
    return with_program_name(
        string.Template(template).safe_substitute(
            COMMANDS="\n".join(command_lines()), APP_CONFIG_GROUPS="\n".join(lines)
        )
    )
