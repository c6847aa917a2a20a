"""What is printed before and after a run: the configuration, the result and the commands to go on."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any, List, Mapping, Sequence, Tuple

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from mxtrain.errors import EXIT_BUDGET
from mxtrain.override_text import code_arguments, quote
from mxtrain.types import Result

_STATE_STYLES = {"finished": "bold green", "stopped_early": "bold green", "interrupted": "bold yellow"}
_PLAIN_HYDRA_VALUE = re.compile(r"[\w./:@%+-]+")


def render_config_tree(config: Mapping[str, Any]) -> Tree:
    """The configuration as a tree: one line per group, with its class and its values; nested parts are branches.

    Args:
        config: The resolved configuration as plain nested dicts.

    Returns:
        A tree that `rich.print` shows, wrapped to whatever width there is.
    """
    tree = Tree(Text("configuration", style="bold"), guide_style="dim")
    scalars = {name: value for name, value in config.items() if not isinstance(value, Mapping)}
    if scalars:
        tree.add(_label("", scalars))
    for name, value in config.items():
        if isinstance(value, Mapping):
            _add_branch(tree, str(name), value)
    return tree


def render_result(result: Result) -> Group:
    """How a run ended, in a few lines: state, cause, work done, best value, last values.

    Args:
        result: The run's result.

    Returns:
        Lines that `rich.print` shows.
    """
    headline = Text(result.state.replace("_", " "), style=_STATE_STYLES.get(result.state, "bold red"))
    if result.cause:
        headline.append(f": {result.cause}", style="default")
    work = f"steps={result.step} epochs={result.epoch} wall={format_seconds(result.wall_s)}"
    lines = [headline, Text(f"{work} samples_per_s={format_rate(result.samples_per_s)}")]
    if result.best:
        best = result.best
        lines.append(Text(f"best {best['metric']}={format_value(best['value'])} at step {best['step']}"))
    if result.metrics:
        lines.append(Text(" ".join(f"{tag}={format_value(value)}" for tag, value in sorted(result.metrics.items()))))
    if result.checkpoint:
        lines.append(Text(f"checkpoint {result.checkpoint}"))
    return Group(*lines)


def next_commands(
    run_dir: Path, program: str, overrides: Sequence[str], ended_well: bool, used_up: str = ""
) -> List[Tuple[str, str]]:  # fmt: skip
    """What a person may want to do with a run next.

    Args:
        run_dir: The run directory.
        program: What starts mxtrain, e.g. "python -m mxtrain".
        overrides: The overrides that the run was started with, without shell quoting.
        ended_well: Whether the run did what it was asked for; if not, going on with it comes first.
        used_up: The setting that ended it, without which it goes on.

    Returns:
        Pairs of a purpose and a command for a POSIX shell.
    """
    shown_dir = _short(run_dir)
    quoted_dir = shlex.quote(shown_dir)
    left_out = r"hydra\.(run|sweep)\.|checkpoint\.resume=never$" + (f"|{re.escape(used_up)}=" if used_up else "")
    kept = [word for word in overrides if not re.match(rf"\+{{0,2}}({left_out})", word)]
    words = [*kept, f"hydra.run.dir={_hydra_value(shown_dir)}"]
    own_code = "".join(f" {shlex.quote(word)}" for word in code_arguments(kept))
    resume = ("go on with this run", " ".join([program, *(shlex.quote(word) for word in words)]))
    others = [
        ("watch", f"tensorboard --logdir {quoted_dir}"),
        ("evaluate", f"{program} eval {quoted_dir}{own_code}"),
        ("predict", f"{program} predict {quoted_dir} FILE...{own_code}"),
    ]
    return [*others, resume] if ended_well else [resume, *others]


def print_end(console: Any, result: Result, run_dir: Path, program: str, overrides: Sequence[str]) -> None:
    """Prints the result, and the commands to go on with, each on a line of its own that is never broken."""
    console.print(render_result(result))
    ended_by = result.cause.partition("=")[0] if result.exit_code == EXIT_BUDGET else ""
    used_up = ended_by if ended_by == "trainer.max_steps" and "trainer.max_epochs=null" not in overrides else ""
    for purpose, command in next_commands(run_dir, program, overrides, result.exit_code == 0, used_up):
        console.print(Text(f"# {purpose}", style="dim"))
        console.print(Text(command), soft_wrap=True)


def format_value(value: Any) -> str:
    """A metric as people read it: four decimals, or the power of ten where they would hide it."""
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 or value != value else f"{value:.3e}"


def format_rate(value: float) -> str:
    """A rate with three or more digits that matter."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def format_seconds(seconds: float) -> str:
    """A duration as h:mm:ss, or as seconds with one decimal below a minute."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _add_branch(tree: Tree, name: str, group: Mapping[str, Any]) -> None:
    scalars = {key: value for key, value in group.items() if not isinstance(value, Mapping)}
    branch = tree.add(_label(name, scalars))
    for key, value in group.items():
        if isinstance(value, Mapping) and value:
            _add_branch(branch, str(key), value)


def _label(name: str, scalars: Mapping[str, Any]) -> Text:
    label = Text(name, style="bold cyan")
    target = scalars.get("_target_")
    if target:
        label.append(f" {str(target).rsplit('.', 1)[-1]}", style="not bold green")
    for key, value in scalars.items():
        if key != "_target_":
            label.append(" " if label else "", style="not bold default")
            label.append(f"{key}=", style="not bold default dim")
            label.append(_yaml_like(value), style="not bold default")
    return label


def _yaml_like(value: Any) -> str:
    """A value as one would type it after `key=`, so that it can be copied from the screen."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_yaml_like(item) for item in value)}]"
    return str(value) if value != "" else "''"


def _short(run_dir: Path) -> str:
    """The run directory relative to the working directory where it lies below it."""
    absolute = Path(os.path.abspath(run_dir))
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)


def _hydra_value(text: str) -> str:
    """`text` as a value in Hydra's override grammar."""
    return text if _PLAIN_HYDRA_VALUE.fullmatch(text) else quote(text)
