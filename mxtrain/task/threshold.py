"""Tasks whose predictions depend on values that a validation has chosen, such as decision thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import Self

from mxtrain.task.spec import Task

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature
    from mxtrain.types.annotations import JsonObject


class ChoosingTask(Task):
    """Base class of tasks whose `build_states` stores what validations have chosen."""

    def restored(self, states: JsonObject) -> Self:
        """Returns the task of a trained network, with the values that `build_states` has stored.

        Args:
            states: JSON values of the states by name; empty if the checkpoint has none. They may come from anybody.

        Raises:
            DamagedCheckpoint: the values cannot be used.
        """
        return self


class ThresholdTask(ChoosingTask):
    """Base class of tasks that predict a class from a probability on. The others refuse `predict threshold=`."""

    def with_threshold(self, threshold: float, signature: Signature) -> ThresholdTask:
        """Returns the task with another probability from which on a class is predicted.

        Args:
            threshold: the probability.
            signature: signature of the network.

        Raises:
            ConfigError: the classes of the signature are not decided by one threshold.
        """
        raise NotImplementedError
