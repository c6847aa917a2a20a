"""First view of a run in TensorBoard: layout of the CUSTOM SCALARS tab, and text pages on the command and result.

The overview is a layout of scalars that exist, not a second copy: TensorBoard 2.21 opens only the first sections of
TIME SERIES by name. Its address is `#custom_scalars`.
"""

from __future__ import annotations

import io
import re
import shlex
from typing import List, Sequence, Tuple

from rich.console import Console
from tensorboardX import summary as messages
from tensorboardX.proto.summary_pb2 import Summary

from mxtrain.callback.protocol import Result, RunInfo
from mxtrain.config.override_text import key_of
from mxtrain.files.text_lines import split_lines
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.report import format_rate, format_value

WIDTH = 100
"""Columns of a table in the TEXT tab."""


def layout_summary(run: RunInfo) -> Summary:
    """Returns the charts of the CUSTOM SCALARS tab: losses, the monitored metric, the others, learning rate,
    throughput.

    All charts are in one category, since TensorBoard opens the first category only.
    """
    monitored = run.monitor.partition("/")[2]
    names = dict.fromkeys(name for name in (monitored, *run.metric_names) if name != "loss")
    charts: List[Tuple[str, Sequence[str]]] = [
        ("loss", ("train/loss", "val/loss")),
        *((name, (f"train/{name}", f"val/{name}")) for name in names),
        ("learning rate", ("train/lr",)),
        ("samples per second", ("perf/samples_per_s",)),
    ]
    # TensorBoard takes tags for regular expressions that a tag begins with.
    overview = {title: ["Multiline", [f"{re.escape(tag)}$" for tag in tags]] for title, tags in charts}
    return messages.custom_scalars({"overview": overview})


def command_text(run: RunInfo) -> str:
    """Returns the command and the settings that differ from the defaults, as Markdown."""
    lines = [as_code(" ".join([run.command.program, *map(shlex.quote, run.command.words)]))]
    typed = [word for word in run.command.overrides if not key_of(word).startswith("hydra.")]
    lines += ["differs from the defaults:\n", as_code("\n".join(typed))] if typed else ["all settings are defaults"]
    return "\n".join(lines)


def model_text(run: RunInfo) -> str:
    """Returns the summary of the network, as Markdown."""
    output = io.StringIO()
    Console(file=output, width=WIDTH, color_system=None).print(run.model_table)
    return as_code(output.getvalue())


def result_text(result: Result) -> str:
    """Returns state, work and metrics of a run as Markdown: a row for each metric, a column for each split."""
    cause = f": {result.cause}" if result.cause else ""
    rate = format_rate(result.samples_per_s)
    work = f"steps={result.step} epochs={result.epoch} wall={format_seconds(result.wall_s)} samples_per_s={rate}"
    values = {tag.partition("/")[::2]: format_value(value) for tag, value in result.metrics.items()}
    if result.best:
        values["best", str(result.best["metric"]).rpartition("/")[2]] = format_value(result.best["value"])
    splits = [split for split in ("train", "val", "best", "test") if any(split == key[0] for key in values)]
    names = sorted({name for split, name in values if split in splits}, key=lambda name: (name != "loss", name))
    rows = [["", *splits], *([name, *(values.get((split, name), "") for split in splits)] for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    return as_code("\n".join([f"{result.state.replace('_', ' ')}{cause}", work, "", *table]))


def as_code(text: str) -> str:
    """Returns a Markdown code block, which TensorBoard shows as it is."""
    return "".join(f"    {line}\n" for line in split_lines(text))
