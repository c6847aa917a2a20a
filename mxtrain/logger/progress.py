"""Formats the progress of a run for a terminal and for a log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Dict, Iterable, Mapping, Optional, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mxtrain.callback.protocol import OF_EPOCH, Progress, RunInfo, Validation
from mxtrain.logger.rows import mean_of_rows
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.report import format_rate, format_value

if TYPE_CHECKING:
    from mxtrain.callback.protocol import GpuMemory
    from mxtrain.types.annotations import MetricRow


class RunProgress:
    """Latest values of a run. `rich` renders them as two lines that fit any width: a progress bar, and values."""

    def __init__(self, run: RunInfo) -> None:
        self.epochs_done = (run.resumed_step - run.epoch_origin) // max(1, run.steps_per_epoch)
        self._step = run.resumed_step
        self._row_epoch: int = self.epochs_done
        self._values: Dict[str, float] = {}
        """The newest value of each tag, e.g. train/loss."""
        self._part = ""
        """Measured part of the validation split, e.g. "2 of 6 batches"; empty if all of it was measured."""
        self._is_best = False
        """True if the newest validation is the best so far."""
        self._samples_per_s: Optional[float] = None
        self._fullest_gpu: Optional[GpuMemory] = None
        self._total_steps = run.total_steps
        self._steps_per_epoch, self._epoch_origin = max(1, run.steps_per_epoch), run.epoch_origin
        self._monitor = run.monitor
        self._began_at = self._warm_at = (time.monotonic(), run.resumed_step)
        """(time, step) of the start of the run, and of the end of the first logged steps, which are slower."""

    def update_train(self, rows: Sequence[MetricRow], progress: Progress) -> None:
        """Updates the training values with the means of the newest rows, and the speed with that of the last row."""
        is_first = self._step == self._began_at[1]
        self._update("train", rows, progress)
        if is_first:
            self._warm_at = (time.monotonic(), self._step)
        if rows and rows[-1].get("samples_per_s"):
            self._samples_per_s = float(rows[-1]["samples_per_s"])
        self._fullest_gpu = max(progress.gpu_memory, key=lambda memory: memory.used_mb, default=None)

    def update_scalars(self, scalars: Mapping[str, float]) -> None:
        """Replaces displayed values; at the end of an epoch, averages over the epoch replace those of its last rows."""
        for name, value in scalars.items():
            tag = name[: -len(OF_EPOCH)] if name.endswith(OF_EPOCH) else name
            if tag in self._values:
                self._values[tag] = value

    def update_validation(self, validation: Validation, progress: Progress) -> None:
        """Updates the validation values and the best value."""
        self._update("val", [validation.row], progress)
        self._part = validation.row.get("part", "")
        if validation.best:
            self._values["best"] = validation.best["value"]
            self._is_best = validation.best["step"] == validation.row["step"]

    def remaining_s(self) -> Optional[float]:
        """Returns the estimated seconds until the end of the run; None if unknown.

        The estimate uses the mean time per step, including validations and checkpoints. It leaves out the first logged
        steps, which are slower.
        """
        began_s, first_step = self._warm_at if self._step > self._warm_at[1] else self._began_at
        done = self._step - first_step
        if not self._total_steps or done <= 0:
            return None
        return (time.monotonic() - began_s) / done * max(0, self._total_steps - self._step)

    def plain_line(self, split: str, tags: Sequence[str] = ("train",)) -> str:
        """Returns one line for a log, in `name=value` words that are easy to find with grep.

        Args:
            split: first word of the line, e.g. "train" or "val".
            tags: values to show, by the part of their tag before the slash.
        """
        words = [split, f"epoch={self._row_epoch}", f"step={self._step_of_total()}"]
        values = {tag: value for tag, value in self._values.items() if tag.split("/")[0] in tags}
        words += [f"{tag}={format_value(value)}" for tag, value in values.items()]
        if self._samples_per_s is not None:
            words.append(f"samples_per_s={format_rate(self._samples_per_s)}")
        if self._fullest_gpu is not None:
            words.append(f"gpu_memory_mb={self._fullest_gpu.used_mb:.0f} peak={self._fullest_gpu.peak_mb:.0f}")
        remaining_s = self.remaining_s()
        if remaining_s is not None:
            words.append(f"left={format_seconds(remaining_s)}")
        if split == "val" and self._part:
            words.append(f"(val/... of {self._part})")
        return " ".join(words)

    def epoch_line(self, split: str, width: int) -> Text:
        """Returns the line of an epoch ("train") or a validation ("val") that stays on the terminal.

        It has as many values as fit into `width`. A star marks the best validation so far.
        """
        head = Text(self._epoch_of_total(self._row_epoch), style="bold")
        values = {tag: value for tag, value in self._values.items() if tag.split("/")[0] in ("train", split)}
        star = Text(" *" if split == "val" and self._is_best else "", style="bold green")
        preferred = ("train/loss", "val/loss", self._monitor, *values)
        tags = [tag for tag in dict.fromkeys(preferred) if tag in values and tag != "train/lr"]
        words = {tag: format_value(values[tag]) for tag in tags}
        return Text("  ").join([head, self._fit_words(words, words, width - len(head) - 4)]).append_text(star)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        total = self._total_steps or self._steps_per_epoch
        done = self._step if self._total_steps else (self._step - self._epoch_origin) % self._steps_per_epoch
        remaining_s = self.remaining_s()
        bar = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None, None):
            bar.add_column(no_wrap=True, ratio=ratio)
        bar.add_row(
            Text(self._epoch_of_total(self.epochs_done + 1), style="bold"),
            ProgressBar(total=total, completed=done),
            Text(f"step {self._step_of_total()}"),
            Text(f"{format_seconds(remaining_s)} left" if remaining_s is not None else "", style="dim"),
        )
        yield bar
        yield self._values_line(options.max_width)

    def _update(self, split: str, rows: Sequence[MetricRow], progress: Progress) -> None:
        self._step, self.epochs_done = progress.step, progress.epoch
        self._total_steps = progress.total_steps
        if rows:
            self._row_epoch = rows[-1].get("epoch", progress.epoch)
        self._values.update({f"{split}/{name}": value for name, value in mean_of_rows(rows).items()})

    def _values_line(self, width: int) -> Text:
        """Returns the line with as many whole values as fit: loss, monitored value, best value and speed first."""
        words = {tag: format_value(value) for tag, value in self._values.items()}
        if self._samples_per_s is not None:
            words["samples/s"] = format_rate(self._samples_per_s)
        if self._fullest_gpu is not None:
            words["GPU GB"] = f"{self._fullest_gpu.used_mb / 1e3:.1f} (peak {self._fullest_gpu.peak_mb / 1e3:.1f})"
        preferred = ("train/loss", self._monitor, "best", "samples/s")
        return self._fit_words(words, sorted(words, key=lambda name: name not in preferred), width)

    def _fit_words(self, words: Mapping[str, str], by_priority: Iterable[str], width: int) -> Text:
        """Returns the words that fit into the width.

        Args:
            words: values as text by name, in the order in which they are shown.
            by_priority: names, the most important first.
            width: number of columns of the terminal.
        """
        room = width
        chosen = set()
        for name in by_priority:
            room -= len(f"{name} {words[name]}  ")
            if room >= -2:  # the last word needs no two spaces after it
                chosen.add(name)
        line = Text(no_wrap=True, overflow="ellipsis")
        for name in (name for name in words if name in chosen):
            line.append(f"{'  ' if line else ''}{name} ", style="dim")
            line.append(words[name], style="bold" if name == self._monitor else "")
        return line

    def _epoch_of_total(self, epoch: int) -> str:
        if not self._total_steps:
            return f"epoch {epoch}"
        # Rounded up, since `trainer.max_steps` may end a run within an epoch.
        total = -((self._epoch_origin - self._total_steps) // self._steps_per_epoch)
        return f"epoch {min(epoch, total):{len(str(total))}}/{total}"

    def _step_of_total(self) -> str:
        return f"{self._step}/{self._total_steps}" if self._total_steps else str(self._step)
