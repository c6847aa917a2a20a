"""Shows a run on the console: a bar on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Optional, Sequence, Set, TextIO, Union

from rich.console import Console
from rich.text import Text

from mxtrain.callback.protocol import Callback, Progress, Result, RunInfo, Validation
from mxtrain.logger.config_tree import render_config
from mxtrain.logger.progress import RunProgress
from mxtrain.logger.views import BarView, PlainView
from mxtrain.terminal.console import LogRedirection, open_console, without_box
from mxtrain.terminal.report import print_end

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow, UsageReport


class ConsoleLogger(Callback):
    """Prints to standard output, or to `stream`. A reader that has left ends the printing, not the run."""

    def __init__(
        self,
        show_config: Union[bool, str] = True,
        show_model: bool = True,
        refresh_s: float = 0.5,
        plain_interval_s: float = 10.0,
        stream: Optional[TextIO] = None,
    ) -> None:
        """Args are the fields of `mxtrain.logger.console.Console`; `stream` replaces standard output."""
        self._show_config = show_config
        self._show_model = show_model
        self._refresh_s = refresh_s
        self._plain_interval_s = plain_interval_s
        self._stream = stream
        self._run: Optional[RunInfo] = None
        self._console: Optional[Console] = None
        self._view: Union[BarView, PlainView, None] = None
        self._logs: Optional[LogRedirection] = None
        self._usage_shown: Set[type] = set()

    def on_start(self, run: RunInfo) -> None:
        self._run = run
        self._console = console = open_console(self._stream or sys.stdout)
        live = console.is_terminal and not console.is_dumb_terminal
        if self._show_config and run.config:
            full = self._show_config == "full"
            console.print(render_config(run.config, run.command, full=full, plain=not live))
        for table in (run.model_table, run.placement_table):
            if self._show_model and table is not None:
                console.print(table if live else without_box(table))
        resumed = f", resumed at step {run.resumed_step}" if run.resumed_step else ""
        console.print(Text(f"run directory {Path(run.run_dir)}{resumed}"), soft_wrap=True)
        progress = RunProgress(run)
        # Before the bar starts: it replaces sys.stdout and sys.stderr, by which the handlers are recognised.
        self._logs = LogRedirection(console, redirect=live)
        if live:
            self._view = BarView(console, progress, self._refresh_s)
        else:
            self._view = PlainView(console, progress, self._plain_interval_s)

    def on_steps(self, rows: Sequence[MetricRow], progress: Progress) -> None:
        if self._view:
            self._view.steps(rows, progress)

    def on_glance(self, row: MetricRow, progress: Progress) -> None:
        self.on_steps([row], progress)

    def on_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        if self._view:
            self._view.scalars(scalars)

    def on_usage(self, usage: UsageReport) -> None:
        if self._console and type(usage) not in self._usage_shown:
            self._usage_shown.add(type(usage))  # once is enough for a person; TensorBoard gets them all
            table = usage.table()
            self._console.print(table if isinstance(self._view, BarView) else without_box(table))

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        if self._view:
            self._view.validation(validation, progress)

    def on_message(self, text: str) -> None:
        if self._view:
            self._view.message(text)
        else:  # the run has nothing to do and never starts
            open_console(self._stream or sys.stdout).print(Text(text), soft_wrap=True)

    def on_end(self, result: Result) -> None:
        if not (self._view and self._logs and self._console and self._run):
            return
        self._view.close()
        self._logs.close()
        run = self._run
        print_end(self._console, result, run.run_dir, run.config, run.command, run.predicts, run.predict_inputs)
        self._console.file.flush_or_discard()
        self._view = self._logs = None
