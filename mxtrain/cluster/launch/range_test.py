"""The learning-rate range test of several workers, which the launcher of `train` starts in a temporary folder."""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, List, Sequence, Tuple

from mxtrain.archive.run_files import ROWS_FILE
from mxtrain.archive.run_records import read_rows
from mxtrain.cluster.process import run_silently
from mxtrain.cluster.reported_cause import ReportedCause
from mxtrain.errors import EXIT_BAD_INPUT, EXIT_FINISHED, EXIT_NON_FINITE, ConfigError, MxtrainError
from mxtrain.files.temporary import temporary_root
from mxtrain.workflows.lr_find import checked_curve, range_test

if TYPE_CHECKING:
    from mxtrain.config.groups import Description
    from mxtrain.terminal.progress import WorkProgress
    from mxtrain.training.lr_range import LearningRateCurve
    from mxtrain.workflows.lr_find import LrFindSettings

REPLACED = (
    "lr_scheduler",
    "logger",
    "checkpoint",
    "early_stopping",
    "callback",
    "trainer.max_",
    "trainer.val_",
    "trainer.reference_batch_size",
    "trainer.log_interval",
    "trainer.test",
    "hydra.",
)
"""Prefixes of settings that are not passed to the workers: the range test sets its own length and learning rates."""


def run_range_test(
    description: Description,
    settings: LrFindSettings,
    flags: Sequence[str],
    overrides: Sequence[str],
    progress: WorkProgress,
) -> LearningRateCurve:
    """Runs the range test in this process, or, if the description has several workers or servers, in theirs.

    Args:
        description: description of the run.
        settings: first and last rate, and the number of steps.
        flags, overrides: words from which the description was composed; other processes compose it from them.
        progress: shows the steps of a test in this process.

    Raises:
        ConfigError: the description cannot be trained.
        DataError: the data cannot be read.
        MxtrainError: the loss of the first step is not finite, or a worker failed.
    """
    if not description.kvstore.distributed:
        return range_test(description, settings, progress)
    description.trainer.require_one_run("lr_find")
    with progress:
        progress.begin("training in several processes", 0)
        return _test_in_workers(settings, flags, overrides)


def _test_in_workers(settings: LrFindSettings, flags: Sequence[str], overrides: Sequence[str]) -> LearningRateCurve:
    """Trains all steps: workers that agree on each step do not stop where the loss diverges, unless it is not finite.
    The curve is cut there."""
    arguments = [
        *flags,
        *(word for word in overrides if not word.lstrip("+~").startswith(REPLACED)),
        "lr_scheduler=range_test",
        f"lr_scheduler.start={settings.start}",
        f"lr_scheduler.end={settings.end}",
        f"lr_scheduler.num_steps={settings.steps}",
        "logger=jsonl",
        "checkpoint=off",
        "early_stopping=off",
        "callback=default",
        "trainer.max_epochs=null",
        f"trainer.max_steps={settings.steps}",
        "trainer.max_time=null",
        "trainer.val_interval_unit=steps",
        f"trainer.val_interval={settings.steps}",
        # The last step of a run is always validated, so the validation is made as short as possible.
        "trainer.limit_val_batches=1",
        "trainer.test=false",
        "trainer.reference_batch_size=null",
    ]
    with (
        tempfile.TemporaryDirectory(prefix="mxtrain-lr-find-", dir=temporary_root()) as folder,
        ReportedCause() as reported,
    ):
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "mxtrain", "train", *arguments, f"hydra.run.dir={run_dir}"]
        code = run_silently(command, reported.environment)
        rates, losses = _read_rows(run_dir / ROWS_FILE)
    if code == EXIT_BAD_INPUT and not losses:
        raise ConfigError(reported.cause)
    if code not in (EXIT_FINISHED, EXIT_NON_FINITE) and len(losses) < settings.steps:
        raise MxtrainError(
            f"lr_find: the workers ended with exit code {code} after {len(losses)} steps: {reported.cause}"
        )
    return checked_curve(rates, losses, settings)


def _read_rows(file: Path) -> Tuple[List[float], List[float]]:
    """Returns rates and losses of the training rows; an undefined loss is NaN."""
    rows = [row for row in read_rows(file) if row.get("split") == "train"] if file.is_file() else []
    return [row["lr"] for row in rows], [math.nan if row["loss"] is None else row["loss"] for row in rows]
