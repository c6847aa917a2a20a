"""The signature of observations and actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Dict

from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.reinforcement.policy import Actions

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm


@dataclass(frozen=True)
class ActionSignature(Signature):
    """Signature of observations and actions.

    Attributes:
        actions: action space.
    """

    form: ClassVar[Dict[str, JsonForm]] = {**Signature.form, "actions": {"count": int, "size": int}}

    exported_reader: ClassVar[str] = "mxtrain.reinforcement.exported_policy"

    actions: Actions = REQUIRED

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), "actions": self.actions.to_json()}

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        return {**super()._arguments(values), "actions": Actions.from_json(values["actions"])}
