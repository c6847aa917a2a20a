"""Actions that were passed as objects."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Dict

from mxtrain.callback.action import Action, require_known_hooks
from mxtrain.callback.given import GivenCallback
from mxtrain.given import plain_attributes


class GivenAction(GivenCallback):
    """An `Action`, of which each run asks a copy: its state is that of the run, and in checkpoints."""

    acts: ClassVar[bool] = True

    settings: Dict[str, Any] = {}
    """Plain attributes of it, such as the arguments that it was made with."""

    @classmethod
    def describe_object(cls, action: Action) -> Dict[str, Any]:
        """Returns facts that identify an action besides its class: its plain attributes.

        Raises:
            ConfigError: it has a method that looks like a hook, and nothing calls it.
        """
        require_known_hooks(type(action), "callbacks")
        return {"settings": plain_attributes(action)}

    def build_action(self) -> Action:
        action = copy.copy(self.require())
        action.state = copy.deepcopy(action.state)
        return action
