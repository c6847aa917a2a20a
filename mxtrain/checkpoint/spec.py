"""The group `checkpoint`: when a run is saved, which checkpoints are kept, and whether it resumes."""

from __future__ import annotations

from typing import List, Literal, Optional

import pydantic

from mxtrain.config.cadence import Cadence
from mxtrain.files.object_store.address import StoreError, parse_address
from mxtrain.types import NonNegative, Positive, PositiveFloat, Spec


class CheckpointSpec(Spec):
    """When checkpoints are written, which are kept, and what a run starts from.

    A checkpoint is written at each of the given moments: `every_steps`, `every_epochs` and `every_minutes` are
    alternatives, null is off. Saving, by the clock too, never changes what a run computes.
    """

    resume: str = pydantic.Field("auto", min_length=1)
    """auto: continue the run directory if it has a checkpoint; never: start over; otherwise the path of a checkpoint or
    run directory to start from."""
    changes: List[str] = []
    """Full names of settings that may differ from those of the checkpoint to continue from, e.g. [optimizer.lr]; `data`
    allows changed data. The result differs from that of an uninterrupted run."""
    every_steps: Optional[Positive] = None
    """Optimizer steps between checkpoints."""
    every_epochs: Optional[Positive] = 1
    """Epochs between checkpoints."""
    every_minutes: Optional[PositiveFloat] = 10.0
    """Minutes between checkpoints; limits the work that a crash loses if epochs are long."""
    keep_last: Positive = 2
    """Newest checkpoints to keep. With 2 there is one to fall back on when the newest is damaged."""
    keep_top: NonNegative = 1
    """Checkpoints with the best `trainer.monitor` to keep besides the newest. A new best is saved when it is found,
    whatever the cadence says; with 0 it is not."""
    save_on_end: bool = True
    """Save a checkpoint at the end of the run, even if it is interrupted."""
    upload: Optional[str] = None
    """Address in an object store, such as s3://bucket/runs/a, that holds the same checkpoints: they are uploaded in the
    background, and a run directory that lacks them downloads them. Each run needs an address of its own, which belongs
    to the machine that was started last."""
    on_signal: Literal["stop", "save"] = "stop"
    """Reaction to SIGUSR1 and SIGUSR2, with which schedulers announce the end of a job (Slurm's --signal, submitit),
    and to the notice of `cluster.notice`. stop: save and end with exit code 75, as at the end of a budget;
    save: save and continue."""

    @pydantic.field_validator("upload")
    @classmethod
    def _check_upload(cls, upload: Optional[str]) -> Optional[str]:
        try:
            if upload is not None:
                parse_address(upload)
        except StoreError as error:
            raise ValueError(str(error)) from None
        return upload

    def cadence(self) -> Cadence:
        """Returns the rule for saving in the middle of a run."""
        return Cadence(every_steps=self.every_steps, every_epochs=self.every_epochs, every_minutes=self.every_minutes)

    @property
    def saves(self) -> bool:
        """Returns True if a run leaves any checkpoint at all."""
        return self.save_on_end or self.cadence().is_set
