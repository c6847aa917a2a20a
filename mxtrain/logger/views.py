"""The two ways to show a run in progress: a bar that stays in place, and lines that stay."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Mapping, Optional, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mxtrain.callback.protocol import Progress, Validation
from mxtrain.logger.progress import RunProgress

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow


class _View:
    """Base of both views: prints a line for each epoch and each validation, one where they fall together."""

    def __init__(self, console: Console, progress: RunProgress) -> None:
        self._console = console
        self._progress = progress
        self._epoch_line: Optional[Text] = None
        """Line of an ended epoch, printed with the next step, unless the line of a validation replaces it."""

    def steps(self, rows: Sequence[MetricRow], progress: Progress) -> None:
        """Shows the rows of the newest steps."""
        self._print_epoch_line()
        epochs_before = self._progress.epochs_done
        self._progress.update_train(rows, progress)
        if progress.epoch > epochs_before:
            self._epoch_line = self._line("train")

    def scalars(self, scalars: Mapping[str, float]) -> None:
        """Shows values that follow the rows: those of a whole epoch at its end."""
        self._progress.update_scalars(scalars)
        if self._epoch_line is not None:
            self._epoch_line = self._line("train")

    def validation(self, validation: Validation, progress: Progress) -> None:
        """Shows the result of a validation."""
        self._epoch_line = None
        self._progress.update_validation(validation, progress)
        self._print(self._line("val"))

    def message(self, text: str) -> None:
        """Prints a sentence."""
        self._print(Text(text))

    def close(self) -> None:
        """Prints the pending line of an epoch."""
        self._print_epoch_line()

    def _line(self, split: str) -> Text:
        """Returns the line of an epoch ("train") or of a validation ("val") that has just ended."""
        raise NotImplementedError

    def _print_epoch_line(self) -> None:
        if self._epoch_line is not None:
            self._print(self._epoch_line)
            self._epoch_line = None

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)


class PlainView(_View):
    """Prints one line per validation or epoch, and in between at most one per interval."""

    def __init__(self, console: Console, progress: RunProgress, interval_s: float) -> None:
        super().__init__(console, progress)
        self._interval_s = interval_s
        self._printed_s = time.monotonic()
        self._has_begun = threading.Event()
        # The thread does not hold the view, and ends with one that was not closed.
        weakref.finalize(self, self._has_begun.set)
        self._waiting = threading.Thread(
            target=_wait_for_first_step,
            args=(weakref.ref(self), self._has_begun, interval_s),
            daemon=True,
            name="first step",
        )
        self._waiting.start()

    def _stop_waiting(self) -> None:
        self._has_begun.set()
        self._waiting.join()

    def close(self) -> None:
        self._stop_waiting()
        super().close()

    def steps(self, rows: Sequence[MetricRow], progress: Progress) -> None:
        self._stop_waiting()
        super().steps(rows, progress)
        if self._epoch_line is None and time.monotonic() - self._printed_s >= self._interval_s:
            self._print(self._line("train"))

    def _line(self, split: str) -> Text:
        return Text(self._progress.plain_line(split, ("train",) if split == "train" else ("train", "val", "best")))

    def _print(self, line: Text) -> None:
        self._printed_s = time.monotonic()
        super()._print(line)


def _wait_for_first_step(view: weakref.ref[PlainView], has_begun: threading.Event, interval_s: float) -> None:
    """Prints now and then that no step is done yet, so that a long one is not taken for a hang."""
    began_s, pause_s = time.monotonic(), max(interval_s, 1.0)
    while not has_begun.wait(pause_s):
        open_view = view()
        if open_view is None:
            return
        open_view._print(Text(f"working on the first steps for {time.monotonic() - began_s:.0f} s"))
        del open_view
        pause_s *= 2


class BarView(_View):
    """Shows a bar and the newest values at the foot of a terminal, and prints a line above them for each epoch."""

    def __init__(self, console: Console, progress: RunProgress, refresh_s: float) -> None:
        super().__init__(console, progress)
        self._refresh_s = refresh_s
        self._refreshed_s = 0.0
        # Rich's own refresh thread would draw ten times a second, at a cost that a training step can feel.
        self._live = Live(progress, console=console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)  # where steps take seconds, nothing else is seen for minutes
        # Rich hides the cursor; after a kill it would stay hidden.
        console.show_cursor(True)

    def steps(self, rows: Sequence[MetricRow], progress: Progress) -> None:
        super().steps(rows, progress)
        if time.monotonic() - self._refreshed_s >= self._refresh_s:
            self._refresh()

    def validation(self, validation: Validation, progress: Progress) -> None:
        super().validation(validation, progress)
        self._refresh()

    def close(self) -> None:
        """Removes the bar."""
        super().close()
        self._live.stop()

    def _line(self, split: str) -> Text:
        return self._progress.epoch_line(split, self._console.width)

    def _refresh(self) -> None:
        self._live.refresh()
        self._refreshed_s = time.monotonic()
