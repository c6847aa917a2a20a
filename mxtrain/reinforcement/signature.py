"""The signature of observations and actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Sequence

from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.errors import DamagedCheckpoint
from mxtrain.reinforcement.policy import Actions

if TYPE_CHECKING:
    from mxtrain.reinforcement.environments import Spaces
    from mxtrain.types.annotations import Json, JsonForm


@dataclass(frozen=True)
class ActionSignature(Signature):
    """Signature of observations and actions.

    Attributes:
        actions: action space.
        observation_names: name of each number of a composed observation; empty for other observations.
    """

    form: ClassVar[Dict[str, JsonForm]] = {
        **Signature.form,
        "actions": {"count": int, "size": int, "parts?": [int], "head?": str},
        "observation_names?": [str],
    }

    exported_reader: ClassVar[str] = "mxtrain.reinforcement.exported_policy"

    actions: Actions = REQUIRED
    observation_names: Sequence[str] = ()

    def to_json(self) -> Dict[str, Json]:
        values: Dict[str, Json] = {**super().to_json(), "actions": self.actions.to_json()}
        if self.observation_names:
            values["observation_names"] = list(self.observation_names)
        return values

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        try:
            actions = Actions.from_json(values["actions"])
        except ValueError as error:
            raise DamagedCheckpoint(f"The checkpoint cannot be used: {error}.") from error
        names = tuple(values.get("observation_names", ()))
        return {**super()._arguments(values), "actions": actions, "observation_names": names}

    def difference(self, spaces: Spaces) -> str:
        """Returns the difference of an environment from the one of training, as a clause; empty if there is none."""
        if (spaces.shape, spaces.actions) != (self.shape, self.actions):
            return "its observations or actions differ from those that the network was trained on"
        pairs = zip(spaces.names, self.observation_names)
        number = next((number for number, (now, before) in enumerate(pairs) if now != before), None)
        if number is None:
            return ""
        return (
            f"number {number} of its observations is {spaces.names[number]}, and the network was trained with "
            f"{self.observation_names[number]} there"
        )
