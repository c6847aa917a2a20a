"""Tasks whose predictions depend on values that a validation has chosen, such as decision thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Mapping

from typing_extensions import Self

from mxtrain.task.spec import Task

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature
    from mxtrain.types import Stateful
    from mxtrain.types.annotations import JsonObject, LossBlock

THRESHOLDS, MARGINS = "thresholds", "margins"
CHOSEN_STATES = (THRESHOLDS, MARGINS)
"""Names of the states of checkpoints that hold what validations have chosen."""


class ChoosingTask(Task):
    """Base class of tasks whose validations choose values that checkpoints keep."""

    @property
    def choices(self) -> Mapping[str, Stateful]:
        """Returns the values that validations choose, by the name of their state."""
        return {}

    def build_states(self, loss: LossBlock) -> Mapping[str, Stateful]:
        return self.choices

    def restored(self, states: JsonObject) -> Self:
        """Returns the task of a trained network, with the values that `choices` has stored.

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


def saved_choices(task: Task) -> Dict[str, JsonObject]:
    """Returns what the last validation of a task has chosen, as checkpoints keep it; {} if it chooses nothing."""
    choices = task.choices if isinstance(task, ChoosingTask) else {}
    return {name: dict(state.save_state()[1]) for name, state in choices.items()}


def choices_of(state: JsonObject) -> Dict[str, JsonObject]:
    """Returns the part of the `states` of a checkpoint that validations have chosen."""
    states = state.get("states") or {}
    return {name: states[name] for name in CHOSEN_STATES if name in states}
