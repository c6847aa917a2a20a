"""The learning-rate range test of several workers, which the launcher of `train` starts in a temporary folder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Sequence

from mxtrain.cluster.launch.new_process import train_measured
from mxtrain.errors import EXIT_BAD_INPUT, EXIT_FINISHED, EXIT_NON_FINITE, ConfigError, MxtrainError
from mxtrain.workflows.lr_find import checked_curve, range_test

if TYPE_CHECKING:
    from mxtrain.config.groups import Description
    from mxtrain.terminal.progress import WorkProgress
    from mxtrain.training.lr_range import LearningRateCurve
    from mxtrain.workflows.lr_find import LrFindSettings


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
    code, cause, rows = train_measured(
        flags,
        overrides,
        [
            "lr_scheduler=range_test",
            f"lr_scheduler.start={settings.start}",
            f"lr_scheduler.end={settings.end}",
            f"lr_scheduler.num_steps={settings.steps}",
            "trainer.max_epochs=null",
            f"trainer.max_steps={settings.steps}",
            "trainer.val_interval_unit=steps",
            f"trainer.val_interval={settings.steps}",
            "trainer.reference_batch_size=null",
        ],
    )
    losses = [math.nan if row["loss"] is None else row["loss"] for row in rows]
    if code == EXIT_BAD_INPUT and not losses:
        raise ConfigError(cause)
    if code not in (EXIT_FINISHED, EXIT_NON_FINITE) and len(losses) < settings.steps:
        raise MxtrainError(f"lr_find: the workers ended with exit code {code} after {len(losses)} steps: {cause}")
    return checked_curve([row["lr"] for row in rows], losses, settings)
