"""A user's own network class or function, brought in by `_target_`."""

from __future__ import annotations

import inspect
from typing import Any, Callable, ClassVar, Dict, Optional

from mxtrain.model.base import Model
from mxtrain.types import Shape, Shapes

NUM_CLASSES_NAMES = ("num_classes", "classes")


class CustomModel(Model):
    """Wraps a HybridBlock class, or a function that returns one.

    Where it has an argument called `num_classes` or `classes` (or `input_shape`, and for text `vocab_size`) that the
    description does not give, it gets the dataset's.
    """

    reads: ClassVar[str] = ""
    target: Callable[..., Any]
    arguments: Dict[str, Any] = {}

    def build(self, num_classes: int, input_shape: Shape) -> Any:
        return self._build(num_classes, input_shape, None)

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> Any:
        return self._build(num_classes, input_shape, vocab_size)

    def _build(self, num_classes: int, input_shape: Shapes, vocab_size: Optional[int]) -> Any:
        known = {**dict.fromkeys(NUM_CLASSES_NAMES, num_classes), "input_shape": input_shape}
        if vocab_size is not None:
            known["vocab_size"] = vocab_size
        takes = inspect.signature(self.target).parameters
        fitted = {name: value for name, value in known.items() if name in takes}
        return self.target(**{**fitted, **self.arguments})
