"""Rows of predicted classes. Exported folders have a copy of this module."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np


def ranked_classes(names: Sequence[str], probability_K: np.ndarray, top_k: int = 3) -> Dict[str, Any]:
    """Returns the row of the most probable class, its probability, and up to `top_k` classes with theirs. Classes with
    equal probabilities keep their order on every machine."""
    order = (-probability_K).argsort(kind="stable")[: min(top_k, len(names))]
    top = [{"class": names[k], "probability": round(float(probability_K[k]), 6)} for k in order]
    return {**top[0], "top": top}


def binary_row(names: Sequence[str], probability: float) -> Dict[str, Any]:
    """Returns the row of a sample: the more probable class with its own probability, and both classes.

    Args:
        names: names of the two classes; the second one is the positive class.
        probability: probability of the positive class. At 0.5 the positive class is named.
    """
    pairs = [(names[-1], probability), (names[0], 1.0 - probability)]
    pairs = pairs if probability >= 0.5 else pairs[::-1]
    top: List[Dict[str, Any]] = [{"class": name, "probability": round(value, 6)} for name, value in pairs]
    return {**top[0], "top": top}
