"""Callbacks, which watch a run, and actions, which change it. A user's own `mxtrain.types.Callback` or
`mxtrain.callback.Action` needs only a `_target_`."""

from typing import TYPE_CHECKING

from mxtrain.callback.action import Action as Action
from mxtrain.callback.action import Control as Control
from mxtrain.config.moved import moved_names

if not TYPE_CHECKING:  # else mypy would accept any name
    __getattr__ = moved_names(__name__)
