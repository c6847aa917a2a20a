"""`score`: trains a preset, and compares the result with the score in its YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from mxtrain.archive.run_files import STATUS_FILE
from mxtrain.archive.score import Score
from mxtrain.archive.status import read_status_object
from mxtrain.config.specs import flatten
from mxtrain.errors import EXIT_FINISHED
from mxtrain.training.prepared_run import PreparedRun
from mxtrain.types import PathText, Spec


class ScoreSettings(Spec):
    """Settings of `score`, besides overrides."""

    dir: Optional[PathText] = None
    """The run directory; by default outputs/DATE/TIME. The same command continues there after an interruption."""


@dataclass(frozen=True)
class ScoreResult:
    """Result of `score`.

    Attributes:
        name: the preset.
        score: its score: ``metric``, ``value``, ``tolerance``, ``seed`` and ``source``.
        path: run directory.
        exit_code: exit code of the run, as for ``mxtrain train``.
        cause: why the run ended before its end; else empty.
        direction: "max" if larger values of the metric are better, else "min".
        value: the value that the run reached; None if it did not finish or has no such metric.
    """

    name: str
    score: Score
    path: Path
    exit_code: int
    cause: str
    direction: str
    value: Optional[float]

    @property
    def worse_by(self) -> Optional[float]:
        """Difference from the score; negative if the value is better. None without a value."""
        if self.value is None:
            return None
        return self.score.value - self.value if self.direction == "max" else self.value - self.score.value

    @property
    def reached(self) -> bool:
        """True if the value is worse than the score by at most the tolerance."""
        return self.worse_by is not None and self.worse_by <= self.score.tolerance

    def __str__(self) -> str:
        score, worse = self.score, self.worse_by
        if worse is None:
            return f"NOT reached: {self.path}/{STATUS_FILE} has no {score.metric}"
        relation = "better" if worse < 0 else "worse"
        verdict = "the score was reached" if self.reached else "the score was NOT reached"
        return (
            f"{self.name}: {score.metric} {self.value:.6g}, in its YAML file {score.value:g} with tolerance "
            f"{score.tolerance:g} ({score.source}): {verdict} ({abs(worse):.3g} {relation})"
        )

    __repr__ = __str__


def score_run(name: str, score: Score, run: PreparedRun, direction: str) -> ScoreResult:
    """Trains a preset and compares the result with its score.

    Args:
        name: name of the preset.
        score: its score.
        run: the run of the preset, which computes the metric.
        direction: better direction of the metric, "max" or "min".

    Raises:
        MxtrainError: the run could not start.
    """
    end = run.train()
    path = Path(end.run_dir)
    value = read_value(path, score.metric) if end.exit_code == EXIT_FINISHED else None
    return ScoreResult(name, score, path, end.exit_code, end.cause, direction, value)


def read_value(run_dir: Path, metric: str) -> Optional[float]:
    """Returns a final value of a finished run. Values of the best checkpoint's validation are those of `best`."""
    status = read_status_object(run_dir)
    best = status.get("best") or {}
    if best.get("metric") == metric:
        return float(best["value"])
    values: List[object] = [flatten(status.get("metrics") or {}).get(metric)]
    return float(values[0]) if isinstance(values[0], (int, float)) else None
