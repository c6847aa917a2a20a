"""When checkpoints are written, which are kept, and what a run continues from."""

from __future__ import annotations

from typing import Optional

from mxtrain.cadence import Cadence
from mxtrain.types import NonNegative, Positive, PositiveFloat, Spec


class CheckpointSpec(Spec):
    """When checkpoints are written and which are kept."""

    resume: str = "auto"
    """auto: continue what the run directory holds; never: start over; or the path of a run or checkpoint."""
    every_steps: Optional[Positive] = None
    """Steps between two checkpoints."""
    every_epochs: Optional[Positive] = 1
    """Epochs between two checkpoints."""
    every_minutes: Optional[PositiveFloat] = None
    """Minutes between two checkpoints."""
    keep_last: Positive = 2
    """How many of the latest to keep."""
    keep_top: NonNegative = 1
    """How many of the best by trainer.monitor to keep."""

    def cadence(self) -> Cadence:
        """When to save."""
        return Cadence(
            every_steps=self.every_steps, every_epochs=self.every_epochs, every_minutes=self.every_minutes
        )
