"""Prints the report at the end of a run: the result, and suggested commands.

Commands are printed as the user can type them, depending on how the process was started. Commands that would not work
are not printed, e.g. if nothing was saved or TensorBoard is not installed.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mxtrain.callback.protocol import CommandLine, Result
from mxtrain.config.override_text import code_arguments, quote
from mxtrain.config.placeholders import placeholders_in
from mxtrain.config.specs import own_spec
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED, EXIT_NON_FINITE
from mxtrain.terminal.durations import format_seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from mxtrain.types.annotations import Config

_STATE_STYLES = {"finished": "bold green", "stopped_early": "bold green", "interrupted": "bold yellow"}
_PLAIN_HYDRA_VALUE = re.compile(r"[\w./:@%+-]+")


def render_result(result: Result, plain: bool = False) -> Group:
    """Renders the result of a run: state, cause, work done, and a table of values.

    Args:
        result: the result.
        plain: True for pipes and files: `name=value` words, one line for each row of the table.

    Returns:
        Lines for `rich.print`.
    """
    headline = Text(result.state.replace("_", " "), style=_STATE_STYLES.get(result.state, "bold red"))
    if result.cause:
        headline.append(f": {result.cause}", style="default")
    work = f"steps={result.step} epochs={result.epoch} wall={format_seconds(result.wall_s)}"
    lines: List[RenderableType] = [headline, Text(f"{work} samples_per_s={format_rate(result.samples_per_s)}")]
    rows = list(_rows_of(result))
    if plain:
        lines += [Text(line) for line in _plain_lines(rows)]
    elif rows:
        lines.append(_table_of(rows, result))
    if result.checkpoint:
        lines.append(Text(f"checkpoint {result.checkpoint}"))
    return Group(*lines)


class _ResultRow(NamedTuple):
    """Values that were measured with the weights of one step."""

    name: str
    """A split, "best", or the part before the slash of other tags."""
    values: List[Tuple[str, str]]
    """Pairs of a tag, such as val/loss, and its value as text."""
    step: Optional[int]
    """The step of the weights; None if unknown."""
    part: str = ""
    """Measured part of the split; empty: the whole split."""
    is_kept: bool = True
    """True if there is a checkpoint of these weights, or may be one."""


def _rows_of(result: Result) -> Iterator[_ResultRow]:
    """Yields the rows of the table: training, validation, best validation, test, then all other tags."""
    tags = sorted(result.metrics)
    order = ("train", "val", "best", "test")
    for name in (*order, *dict.fromkeys(_split_of(tag) for tag in tags if _split_of(tag) not in order)):
        if name == "best" and result.best:
            best = result.best
            is_kept = bool(result.best_checkpoint or result.exit_code)
            yield _ResultRow(name, [(best["metric"], format_value(best["value"]))], best["step"], is_kept=is_kept)
        values = [(tag, format_value(result.metrics[tag])) for tag in tags if _split_of(tag) == name]
        if values:
            measured = result.measured.get(name, {})
            yield _ResultRow(name, values, measured.get("step"), measured.get("part") or "")


def _split_of(tag: str) -> str:
    return tag.partition("/")[0]


def _plain_lines(rows: Iterable[_ResultRow]) -> Iterator[str]:
    """Yields one line for each row, the best validation first."""
    for row in sorted(rows, key=lambda row: (row.name != "best", row.name)):
        words = [f"{tag}={value}" for tag, value in row.values]
        if row.name == "best":
            yield f"best {words[0]} at step {row.step}{'' if row.is_kept else ' (its weights were not kept)'}"
            continue
        if row.step is not None:
            words.append(f"({', '.join(filter(None, [f'step {row.step}', row.part]))})")
        yield " ".join(words)


def _weights_of(row: _ResultRow, result: Result) -> str:
    """Describes the weights that a row's values belong to, and the measured part of the split."""
    if row.name == "train":
        return "while they were trained, in the last epoch"
    step = result.step if row.step is None else row.step
    words = [f"step {step}"]
    if row.name in ("val", "test"):
        if result.best is not None and step == result.best["step"]:
            words.append("the best")
        elif step == result.step:
            words.append("the last")
    return ", ".join(filter(None, [*words, row.part, "" if row.is_kept else "whose weights were not kept"]))


def _table_of(rows: Sequence[_ResultRow], result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    metric_names = {tag.partition("/")[2] for row in rows for tag, _ in row.values}
    names = sorted(metric_names, key=lambda name: (name != "loss", name))
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("measured with the weights of", style="dim")
    for row in rows:
        values = {tag.partition("/")[2]: value for tag, value in row.values}
        name_cell = Text(row.name, style="bold green" if row.name == "best" else "")
        table.add_row(name_cell, *(values.get(name, "") for name in names), _weights_of(row, result))
    return table


def next_commands(
    result: Result,
    run_dir: Path,
    config: Config,
    command: CommandLine,
    predicts: bool = True,
    predict_inputs: str = "FILE...",
) -> List[Tuple[str, str]]:
    """Returns commands to suggest after the run, the most probable first. Only commands that can work are suggested.

    Args:
        result: result of the run.
        run_dir: run directory.
        config: resolved configuration of the run as plain nested dicts.
        command: command that has started the run.
        predicts: True if the task supports `predict`.
        predict_inputs: arguments after `predict RUN`.

    Returns:
        (purpose, command for a POSIX shell) pairs.
    """
    run_path = _relative(run_dir)
    # A path with `=`, or with one of these prefixes, would be parsed as an override or a flag.
    run_path = shlex.quote(f"./{run_path}" if "=" in run_path or run_path.startswith(("+", "~", "-")) else run_path)
    code_options = "".join(f" {shlex.quote(word)}" for word in code_arguments(command.arguments))
    loggers = (config.get("logger") or {}).values()
    # The checkpoint of step 0 has the initial weights, which nobody evaluates.
    is_trained = result.checkpoint is not None and Path(result.checkpoint).name != "step-00000000"
    commands: List[Tuple[str, str]] = []
    if any(getattr(own_spec(logger.get("_target_")), "writes_events", False) for logger in loggers):
        commands.append(("watch", f"{command.tensorboard} --logdir {run_path}"))
    named = [path.partition(".")[0] for path, _ in placeholders_in(config)]
    api_groups = [group for group in dict.fromkeys(named) if group != "callback"]
    if api_groups:  # objects of the Python API cannot be given on a command line
        arguments = "".join(f", {group}=..." for group in api_groups if group != "optimizer")
        load = f"run = mxtrain.load({str(_relative(run_dir))!r}{arguments})"
        return [*commands, ("evaluate and predict in Python", load)]
    if is_trained:
        commands.append(("evaluate", f"{command.program} eval {run_path}{code_options}"))
    if is_trained and predicts:
        if predict_inputs == "FILE...":  # `sample=` also works for datasets that are not files
            sample_command = f"{command.program} predict {run_path} sample=5{code_options}"
            commands.append(("predict for its own data", sample_command))
        predict_arguments = f"{run_path} {predict_inputs}".rstrip()
        commands.append(("predict", f"{command.program} predict {predict_arguments}{code_options}"))
    if result.exit_code == EXIT_FINISHED:
        return commands
    if result.exit_code == EXIT_NON_FINITE:
        return [_stabilized_command(config, command), *commands]
    return [_resume_command(result, run_dir, command), *commands]


def _resume_command(result: Result, run_dir: Path, command: CommandLine) -> Tuple[str, str]:
    """Returns the command that resumes the run in its directory, without the limit that ended it."""
    ended_by = result.cause.partition("=")[0] if result.exit_code == EXIT_BUDGET else ""
    budgets = ("trainer.max_steps", "trainer.epoch_budget")
    # If trainer.max_epochs is null, the budget is the only limit of the run, and is kept.
    is_budget_spent = ended_by in budgets and "trainer.max_epochs=null" not in command.overrides
    # `checkpoint.resume=never` would set this run aside and start a new one.
    omitted = ["checkpoint.resume=never", *([f"{ended_by}="] if is_budget_spent else [])]
    command_text = _edited_command(command, omitted, f"hydra.run.dir={_hydra_value(_relative(run_dir))}")
    return ("go on with this run" if result.checkpoint else "try again"), command_text


def _stabilized_command(config: Config, command: CommandLine) -> Tuple[str, str]:
    """Returns the command of a new run with settings that help against a diverging loss."""
    lr = (config.get("optimizer") or {}).get("lr")
    # With tables on servers no worker knows the global norm, so elements are clipped instead.
    is_on_servers = (config.get("kvstore") or {}).get("tables") == "servers"
    clip = "optimizer.clip_gradient=" if is_on_servers else "trainer.clip_global_norm="
    changes = [f"{clip}1"]
    if isinstance(lr, (int, float)) and lr:
        changes.insert(0, f"optimizer.lr={lr / 10:g}")
    advice = "the loss diverged: a lower rate, clipped gradients and a warm-up (lr_scheduler.warmup=EPOCHS) help"
    return advice, _edited_command(command, ["optimizer.lr=", clip], *changes)


def _edited_command(command: CommandLine, omitted: Sequence[str], *overrides: str) -> str:
    """Returns the command of a run with other overrides.

    Args:
        command: command that has started the run; its run directory is left out.
        omitted: prefixes of overrides to leave out.
        overrides: overrides to append.
    """
    prefixes = ("hydra.run.", "hydra.sweep.", *omitted)
    kept_arguments = [word for word in command.arguments if not word.lstrip("+").startswith(prefixes)]
    return " ".join([command.program, *(shlex.quote(word) for word in (*kept_arguments, *overrides))])


def print_end(
    console: Console,
    result: Result,
    run_dir: Path,
    config: Config,
    command: CommandLine,
    predicts: bool = True,
    predict_inputs: str = "FILE...",
) -> None:
    """Prints the result and suggested commands. Paths and commands are never wrapped, so that they can be copied."""
    for line in render_result(result, plain=not console.is_terminal).renderables:
        console.print(line, soft_wrap=isinstance(line, Text))
    # A sweep prints its suggestions once, at its end.
    is_single = command.job is None
    commands = next_commands(result, run_dir, config, command, predicts, predict_inputs) if is_single else []
    print_commands(console, commands)


def print_commands(console: Console, commands: Sequence[Tuple[str, str]]) -> None:
    """Prints (purpose, command) pairs."""
    for purpose, command in commands:
        console.print(Text(f"# {purpose}", style="dim"))
        console.print(Text(command), soft_wrap=True)


def format_value(value: object) -> str:
    """Formats a metric with four decimals, or in scientific notation if it is very small or large; NaN, an undefined
    value, as "-"."""
    if not isinstance(value, (int, float)):
        return str(value)
    if math.isnan(value):
        return "-"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"


def format_rate(value: float) -> str:
    """Formats a rate with three significant digits, or all digits of its integer part."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _relative(run_dir: Path) -> str:
    """Returns the run directory relative to the current directory if it is below it, else absolute."""
    absolute = Path(os.path.abspath(run_dir))
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)


def _hydra_value(text: str) -> str:
    """Quotes text as a value in Hydra's override grammar, if necessary."""
    return text if _PLAIN_HYDRA_VALUE.fullmatch(text) else quote(text)
