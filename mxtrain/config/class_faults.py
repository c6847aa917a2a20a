"""Faults of a user's own option classes that do not depend on settings, so that they are found before a run starts."""

from __future__ import annotations

from typing import Dict, Tuple

from mxtrain.errors import nearest

NEEDED: Dict[str, Tuple[Tuple[str, ...], ...]] = {
    "BaseDataset": (("open", "examine"), ("infer_signature",), ("build_loader",)),
    "KVStore": (("build",),),
    "Logger": (("build",),),
    "Metric": (("sums", "measure", "compute"),),
    "Task": (("decode", "build_decode"), ("row", "prediction_format")),
}
"""Base class of a group -> methods that a class of it must define; of each tuple one."""


def class_fault(kind: type, base: type) -> str:
    """Returns what is wrong with a class as a sentence; empty if nothing is.

    Args:
        kind: the class of an option.
        base: the base class of its group.
    """
    direction = getattr(kind, "direction", "unknown") if base.__name__ == "Metric" else "unknown"
    if isinstance(direction, str) and direction not in ("max", "min", "unknown"):  # else a property
        return f"{kind.__name__}.direction is {direction!r}. Write 'max' or 'min'."
    if not getattr(kind, "predicts", True):  # a task without predictions
        return ""
    for names in NEEDED.get(base.__name__, ()):
        if not any(_defines(kind, name, base) for name in names):
            own = [name for name, value in vars(kind).items() if callable(value) and name not in names]
            near = [found for name in names for found in nearest(name, own)]
            misspelled = f" Is '{near[0]}' misspelled?" if near else ""
            return f"{kind.__name__} must define the method {' or '.join(names)}.{misspelled}"
    return ""


def _defines(kind: type, name: str, base: type) -> bool:
    """Returns True if a class has a method of its own, and not one that only raises NotImplementedError."""
    method = getattr(kind, name, None)
    if method is None or method is getattr(base, name, None):
        return False
    return getattr(method, "__code__", None) is None or method.__code__.co_names != ("NotImplementedError",)
