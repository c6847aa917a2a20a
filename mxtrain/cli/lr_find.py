"""`mxtrain lr_find`: a learning-rate range test. It trains a copy, in a process and a folder of its own, at rising
rates until the loss diverges, writes the curve and prints a range with its reasons. It chooses nothing."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, List, Optional, Sequence, Tuple

import pydantic
from typing_extensions import Annotated, Unpack

from mxtrain.archive.run_files import ROWS_FILE
from mxtrain.archive.run_records import read_rows
from mxtrain.cluster.launch.preserved import preserved_process
from mxtrain.composing import arguments as command_line
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.composing.parts import Parts, with_parts
from mxtrain.composing.settings import split_settings
from mxtrain.config.specs import validate
from mxtrain.errors import EXIT_BAD_INPUT, EXIT_FINISHED, EXIT_NON_FINITE, ConfigError, MxtrainError
from mxtrain.files.temporary import temporary_place
from mxtrain.training.lr_range import LearningRateCurve, read_curve
from mxtrain.types import PositiveFloat, Spec
from mxtrain.workflows.output_file import OutputFolder

POLL_S = 0.1
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
"""Beginnings of settings that the copy does not have: it writes nothing, and has a length and rates of its own."""


class LrFindSettings(Spec):
    """Settings of `lr_find`, besides overrides."""

    start: PositiveFloat = 1e-6
    """First learning rate."""
    end: PositiveFloat = 10.0
    """Last learning rate."""
    steps: Annotated[int, pydantic.Field(ge=10)] = 100
    """Steps from one to the other, unless the loss diverges before."""
    output: OutputFolder = "lr_find"
    """Folder for curve.png, curve.csv and curve.json, which are replaced."""

    @pydantic.model_validator(mode="after")
    def _rises(self) -> LrFindSettings:
        if self.start >= self.end:
            raise ValueError(f"start={self.start:g} must be below end={self.end:g}")
        return self


def run(arguments: Sequence[str]) -> int:
    """Tests, writes and prints; returns the exit code."""
    parsed = command_line.parse(arguments)
    settings, overrides = split_settings(parsed, LrFindSettings, "lr_find")
    command_line.no_positionals(parsed, "lr_find")
    curve = _test(settings, overrides, parsed.config_dirs)
    for line in curve.reasons():
        print(line)
    print(*curve.write(Path(settings.output)), sep="\n")
    return EXIT_FINISHED


@with_parts(Parts)
def lr_find(
    *overrides: str,
    start: float = 1e-6,
    end: float = 10.0,
    steps: int = 100,
    output: Optional[str] = None,
    config_dir: Optional[str] = None,
    **parts: Unpack[Parts],
) -> LearningRateCurve:
    """Trains a copy at exponentially rising learning rates, and returns the losses and the range in which they fall.

    Nothing of a run is changed: the copy is another process in a temporary folder.

    Args:
        overrides: as on the command line, e.g. ``"model=resnet"``.
        start: first learning rate.
        end: last learning rate.
        steps: number of steps, unless the loss diverges before.
        output: folder for curve.png, curve.csv and curve.json; default: none is written.
        config_dir: folder with further groups and options.
        parts: groups by name, as for `mxtrain.train`, but no objects: they cannot be sent to another process.

    Raises:
        ConfigError: an override or a setting is wrong.

    >>> curve = mxtrain.lr_find("model=mlp", "optimizer=sgd")
    >>> curve.range
    """
    from mxtrain.composing.objects import read_arguments, require_overrides

    require_overrides(overrides, "lr_find")
    typed, objects = read_arguments(parts, lr_find)
    if objects:
        raise ConfigError(
            f"lr_find: objects ({', '.join(objects.values)}) cannot be sent to another process. Name them instead, "
            'e.g. "model._target_=package.Class".'
        )
    arguments = {"start": float(start), "end": float(end), "steps": steps}
    settings = validate(
        LrFindSettings,
        {**arguments, **({} if output is None else {"output": os.fspath(output)})},
        "lr_find",
        lambda _: "mxtrain.lr_find",
    )
    with preserved_process():
        curve = _test(settings, [*overrides, *typed], [] if config_dir is None else [os.fspath(config_dir)])
    if output is not None:
        curve.write(Path(settings.output))
    return curve


def _test(settings: LrFindSettings, overrides: Sequence[str], config_dirs: Sequence[str]) -> LearningRateCurve:
    with Composer(config_dirs) as composer:
        before = dict(os.environ)
        try:
            # First: errors must not name the copy's settings.
            compose_and_check(composer, overrides)[1].trainer.require_one_run("lr_find")
        finally:
            os.environ.clear()  # the other process sets its own
            os.environ.update(before)
    kept = [word for word in overrides if not word.lstrip("+~").startswith(REPLACED)]
    words = [
        *command_line.config_flags(config_dirs),
        *kept,
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
        "trainer.log_interval=5",
        "trainer.val_interval_unit=steps",
        f"trainer.val_interval={settings.steps}",
        "trainer.limit_val_batches=1",
        "trainer.test=false",
        "trainer.reference_batch_size=null",
    ]
    with tempfile.TemporaryDirectory(prefix="mxtrain-lr-find-", dir=temporary_place()) as folder:
        run_dir = Path(folder) / "run"
        with tempfile.TemporaryFile(dir=temporary_place()) as output:
            code = _train(run_dir, words, output)
            output.seek(0)
            text = output.read().decode("utf-8", "replace").strip()
        rates, losses = _read_rows(run_dir / ROWS_FILE)
    if code == EXIT_BAD_INPUT and not losses:
        raise ConfigError(text.split("error: ", 1)[-1])
    if len(losses) < 2 and code not in (EXIT_FINISHED, EXIT_NON_FINITE):
        raise MxtrainError(f"lr_find: the copy ended with exit code {code} after {len(losses)} steps:\n{text[-2000:]}")
    curve = read_curve(rates, losses)
    if not curve.smoothed:
        raise MxtrainError(
            f"lr_find: the loss is no finite number in the first step already, at a learning rate of {settings.start:g}"
        )
    return curve


def _train(run_dir: Path, words: Sequence[str], output: IO[bytes]) -> int:
    """Trains in another process until it ends or the loss diverges; returns the exit code."""
    command = [sys.executable, "-m", "mxtrain", "train", *words, f"hydra.run.dir={run_dir}"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        size = 0
        while process.poll() is None:
            time.sleep(POLL_S)
            file = run_dir / ROWS_FILE
            if file.exists() and file.stat().st_size > size:
                size = file.stat().st_size
                if read_curve(*_read_rows(file)).diverged:
                    process.send_signal(signal.SIGTERM)
                    process.wait()
                    return EXIT_FINISHED
        return process.returncode
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _read_rows(file: Path) -> Tuple[List[float], List[float]]:
    """Rates and losses of the training rows."""
    rates: List[float] = []
    losses: List[float] = []
    if not file.is_file():
        return rates, losses
    for row in read_rows(file):
        if row.get("split") == "train":
            rates.append(row["lr"])
            losses.append(math.nan if row["loss"] is None else row["loss"])
    return rates, losses
