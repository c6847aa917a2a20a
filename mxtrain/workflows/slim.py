"""Writes the network of a run without its unused channels as a run directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Optional

from mxtrain.amp.spec import FULL
from mxtrain.checkpoint import open_checkpoint, refuse_links
from mxtrain.checkpoint.average import SLIM
from mxtrain.checkpoint.folder import CHECKPOINTS
from mxtrain.data.spec import choose_split, open_splits
from mxtrain.errors import CheckpointError, ConfigError, DataError, LoaderError
from mxtrain.parallel.spec import Single
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.types import Spec
from mxtrain.workflows.output_file import OutputFolder, not_written, require_writable

if TYPE_CHECKING:
    from mxtrain.training.restored_run import RestoredRun
    from mxtrain.training.slimming import SlimReport

SLIMMED = "slim"


class SlimSettings(Spec):
    """Settings of `slim`."""

    out: Optional[OutputFolder] = None
    """Run directory to write; default: slim in the run directory. One that `slim` wrote before is replaced."""
    which: Literal["best", "last"] = "best"
    """The checkpoint of a run to use: its last or its best one after the last channel was pruned."""


def slim(run: RestoredRun, settings: SlimSettings, progress: WorkProgress = SILENT) -> SlimReport:
    """Writes the network of a checkpoint without its unused channels as a run directory.

    Args:
        run: the run.
        settings: settings; `which` has chosen the checkpoint of the run already.
        progress: shows that work is in progress.

    Raises:
        ConfigError: there is no unused channel, the smaller network computes something else, or the folder holds
            something else.
        DataError: the data that the networks are compared on cannot be read.
        CheckpointError: the folder could not be written.
    """
    if settings.out is None:
        refuse_links(run.run_dir, (SLIMMED, f"{SLIMMED}/{CHECKPOINTS}"))
    folder = require_writable(Path(settings.out) if settings.out else run.run_dir / SLIMMED, "out")
    _require_own(folder)
    alone = replace(run.description, parallel=Single(devices="cpu:1"), amp=FULL)
    if alone.model.state_shapes:
        raise ConfigError("slim: the network carries state from batch to batch, whose size would change.")
    _, source = choose_split(open_splits(run.dataset), "val")
    from mxtrain.training.slimming import remove_channels  # imports MXNet: only from here on

    try:
        with progress:
            progress.begin("removing channels, comparing outputs and speed", 0)
            return remove_channels(run.checkpoint, alone, run.signature, source, folder)
    except LoaderError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise not_written("The network", folder, error) from error


def _require_own(folder: Path) -> None:
    """Refuses a folder that holds something else than a network that `slim` wrote.

    Raises:
        ConfigError: it does.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        is_own = SLIM in open_checkpoint(folder, which="last").state
    except CheckpointError:
        is_own = False
    if not is_own:
        raise ConfigError(f"slim.out={folder}: the folder holds something else. Name another one with out=FOLDER.")
