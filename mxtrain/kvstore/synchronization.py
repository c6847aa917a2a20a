"""Synchronisation of workers that train on their own for a while. Imports no MXNet."""

from __future__ import annotations

from typing import Dict, Mapping

from mxtrain.types import Stateful


class Synchronization:
    """Makes weights and batch-norm statistics of all workers equal from time to time. This base class is for workers
    whose gradients are summed in every step, so that their weights never differ.

    Methods are collective, except for `states` and `scalars`.
    """

    @property
    def states(self) -> Mapping[str, Stateful]:
        """Returns the state that checkpoints store, by name."""
        return {}

    def after_update(self, size: int, global_size: int) -> bool:
        """Counts a step, and synchronises if one is due. Returns True if it changed parameters or statistics.

        Args:
            size: number of samples of this worker in the step.
            global_size: number of samples of all workers in the step.
        """
        return False

    def apply(self) -> bool:
        """Replaces parameters and statistics by the result of a synchronisation after this step.

        Training cannot continue before `undo`. Returns True if anything changed.
        """
        return False

    def undo(self) -> bool:
        """Restores what `apply` replaced. Returns True if anything changed."""
        return False

    def scalars(self) -> Dict[str, float]:
        """Returns values for loggers, by TensorBoard tag."""
        return {}


IN_EVERY_STEP = Synchronization()
"""Gradients are summed in every step, so nothing is left to synchronise."""
