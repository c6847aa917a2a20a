"""A user's own network class or function, brought in by `_target_`."""

from __future__ import annotations

import inspect
from typing import Any, Dict

from mxtrain.model.base import Model
from mxtrain.types import Shape

NUM_CLASSES_NAMES = ("num_classes", "classes")


class CustomModel(Model):
    """Wraps a HybridBlock class, or a function that returns one.

    Where it has an argument called `num_classes` or `classes` (or `input_shape`) that the description does not give,
    it gets the dataset's.
    """

    target: Any
    arguments: Dict[str, Any] = {}

    def build(self, num_classes: int, input_shape: Shape) -> Any:
        known = {**dict.fromkeys(NUM_CLASSES_NAMES, num_classes), "input_shape": input_shape}
        takes = inspect.signature(self.target).parameters
        fitted = {name: value for name, value in known.items() if name in takes}
        return self.target(**{**fitted, **self.arguments})
