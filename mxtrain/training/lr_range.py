"""Reads a learning-rate range test: smooths the losses, and finds the rates at which they fall. Imports no MXNet.

The range is where the smoothed loss makes 10 % to 90 % of its fall. The rate with the lowest loss is not suggested: the
loss is about to rise there.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from mxtrain.data.loading.dataset_files import file_error
from mxtrain.files.durable import encode_json, replace_file

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

SMOOTHING = 0.9
"""Decay of the moving average of the losses, which is corrected for its start."""
DIVERGES_AT = 3.0
"""The test ends when the smoothed loss is above the lowest one by this many times its size, and above the first."""
BEGINS_AT, ENDS_AT = 0.1, 0.9
"""Shares of the fall of the loss at which the range begins and ends."""
MIN_STEPS = 10
"""Losses that a range needs at least."""


@dataclass(frozen=True)
class LearningRateCurve:
    """The losses of a range test.

    Attributes:
        rates: learning rate of each step.
        losses: training loss of each step; the last may be NaN.
        smoothed: moving average of the losses.
        diverged: whether the test ended because the loss rose or was no finite number.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]
    diverged: bool

    def __repr__(self) -> str:
        range_text = "None" if self.range is None else f"({self.range[0]:.2g}, {self.range[1]:.2g})"
        return f"LearningRateCurve(range={range_text}, steps={len(self.rates)}, diverged={self.diverged})"

    @property
    def lowest(self) -> int:
        """Returns the step with the lowest smoothed loss."""
        return min(range(len(self.smoothed)), key=lambda step: self.smoothed[step])

    @property
    def range(self) -> Optional[Tuple[float, float]]:
        """Returns the rates between which the loss falls from 10 % to 90 % of its whole fall; None if it never
        falls."""
        first, low = self.smoothed[0], self.smoothed[self.lowest]
        if len(self.smoothed) < MIN_STEPS or first - low <= 0.02 * abs(first):
            return None
        begin, end = (
            next(step for step, loss in enumerate(self.smoothed) if first - loss >= share * (first - low))
            for share in (BEGINS_AT, ENDS_AT)
        )
        return self.rates[begin], self.rates[end]

    def reasons(self) -> List[str]:
        """Returns the range, and the reasons for it."""
        limits = self.range
        last = (
            f"the loss diverged at {self.rates[-1]:.2g}"
            if self.diverged
            else f"the loss did not diverge up to {self.rates[-1]:.2g}: a larger end= may show higher rates"
        )
        if limits is None:
            return [
                f"no range: the loss did not fall by more than 2 % between {self.rates[0]:.2g} and "
                f"{self.rates[-1]:.2g} ({last})",
                "try another start= and end=, or more steps=",
            ]
        first, low = self.smoothed[0], self.smoothed[self.lowest]
        return [
            f"optimizer.lr between {limits[0]:.2g} and {limits[1]:.2g}",
            f"below {limits[0]:.2g} the loss has made less than {BEGINS_AT:.0%} of its fall ({first:.4g} to {low:.4g})",
            f"at {limits[1]:.2g} it has made {ENDS_AT:.0%} of it; it is lowest at {self.rates[self.lowest]:.2g}, too "
            "late to be a rate for a whole run",
            last,
            "the test is of the first steps only: with a warm-up, or with momentum, higher rates may do",
        ]

    def to_json(self) -> Dict[str, Json]:
        """Returns the numbers and the range."""
        limits = self.range
        return {
            "range": None if limits is None else list(limits),
            "diverged": self.diverged,
            "lr": list(self.rates),
            "loss": [loss if math.isfinite(loss) else None for loss in self.losses],
            "smoothed": list(self.smoothed),
        }

    def write(self, folder: Path) -> List[Path]:
        """Writes curve.png, curve.csv and curve.json, and returns their paths.

        Raises:
            DataError: the files cannot be written, for example because the disk is full.
        """
        figure = io.BytesIO()
        self._draw().savefig(figure, format="png")
        table = io.StringIO(newline="")
        writer = csv.writer(table)
        writer.writerow(["step", "lr", "loss", "smoothed"])
        smoothed = [*map(str, self.smoothed), *[""] * (len(self.rates) - len(self.smoothed))]
        writer.writerows(zip(range(1, len(self.rates) + 1), self.rates, self.losses, smoothed))
        contents = {
            folder / "curve.png": figure.getvalue(),
            folder / "curve.csv": table.getvalue().encode(),
            folder / "curve.json": encode_json(self.to_json(), indent=2) + b"\n",
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in contents:
                # All old files go first, so that a failure leaves no figure beside the numbers of another test.
                path.unlink(missing_ok=True)
            for path, content in contents.items():
                replace_file(path, content)
        except OSError as error:
            raise file_error(folder, error, "written") from error
        return list(contents)

    def _draw(self) -> Any:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        artists: List[Any] = []  # artists of matplotlib's
        figure = Figure(figsize=(7, 4.2), dpi=110, layout="constrained")
        # Not pyplot, which has global state and chooses a backend by the display.
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        artists += axes.plot(self.rates, self.losses, color="0.75", linewidth=0.8)
        artists += axes.plot(self.rates[: len(self.smoothed)], self.smoothed)
        if self.range is not None:
            artists.append(axes.axvspan(*self.range, alpha=0.15))
        low, high = min(self.smoothed), max(self.smoothed[: self.lowest + 1])
        axes.set(
            xscale="log",
            xlabel="learning rate",
            ylabel="training loss",
            ylim=(low - 0.1 * (high - low or 1), high + 0.5 * (high - low or 1)),
        )
        axes.legend(artists, ["loss", "smoothed", "range"][: len(artists)], frameon=False)
        return figure


def read_curve(rates: Sequence[float], losses: Sequence[float]) -> LearningRateCurve:
    """Smooths the losses, up to where they diverge.

    Args:
        rates: learning rate of each step, rising.
        losses: training loss of each step.
    """
    smoothed: List[float] = []
    average, low = 0.0, math.inf
    for step, loss in enumerate(losses):
        average = SMOOTHING * average + (1 - SMOOTHING) * loss
        value = average / (1 - SMOOTHING ** (step + 1))
        # A moving average never recovers from a NaN, so the curve ends here.
        if not math.isfinite(value):
            return LearningRateCurve(rates[: step + 1], losses[: step + 1], smoothed, True)
        smoothed.append(value)
        low = min(low, value)
        if step >= MIN_STEPS and value > low + DIVERGES_AT * abs(low) and value > smoothed[0]:
            return LearningRateCurve(rates[: step + 1], losses[: step + 1], smoothed, True)
    return LearningRateCurve(rates, losses, smoothed, False)
