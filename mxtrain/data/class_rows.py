"""Rows of predicted classes. Exported folders have a copy of this module."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from mxtrain.data.exported_folder import targets_in


def described_classes(signature: Dict[str, Any], probability_K: np.ndarray, top_k: int = 3) -> Dict[str, Any]:
    """Returns the row of a sample for the probabilities of an exported network: of one class, or of several.

    Args:
        signature: content of signature.json.
        probability_K: probability of each class.
        top_k: number of classes in the row.

    Raises:
        ValueError: the thresholds of the classes are damaged.
    """
    names, facts = signature["class_names"], signature.get("facts", {})
    if "ClassSet" not in targets_in(signature):
        return ranked_classes(names, probability_K, top_k, threshold_of(signature))
    thresholds = facts.get("thresholds")
    if not isinstance(thresholds, list) or len(thresholds) != len(names):
        raise ValueError(f"there must be a threshold for each of {len(names)} classes")
    return class_set_row(names, probability_K, thresholds, top_k)


def row_of_outputs(signature: Dict[str, Any], outputs: Dict[str, np.ndarray]) -> Dict[str, Any]:
    """Returns the row of a sample for the outputs of an exported network: classes for probabilities, otherwise lists.

    Args:
        signature: content of signature.json.
        outputs: outputs of the network for one sample.

    Raises:
        ValueError: the thresholds of the classes are damaged.
    """
    if "probabilities" in outputs:
        return described_classes(signature, outputs["probabilities"][0])
    return {name: array.tolist() for name, array in outputs.items()}


def threshold_of(signature: Dict[str, Any]) -> Optional[float]:
    """Returns the threshold between two classes of an exported network; None if it has none."""
    threshold = signature.get("facts", {}).get("threshold")
    return float(threshold) if isinstance(threshold, (int, float)) else None


def class_set_row(
    names: Sequence[str], probability_K: np.ndarray, thresholds: Sequence[float], top_k: int = 3
) -> Dict[str, Any]:
    """Returns the row of a sample with any number of classes: those whose probability reaches their threshold, and the
    `top_k` most probable ones."""
    is_class_K = probability_K >= np.asarray(thresholds, np.float64)
    classes = [name for name, is_class in zip(names, is_class_K.tolist()) if is_class]
    return {"classes": classes, "top": ranked_classes(names, probability_K, top_k)["top"]}


def ranked_classes(
    names: Sequence[str], probability_K: np.ndarray, top_k: int = 3, threshold: Optional[float] = None
) -> Dict[str, Any]:
    """Returns the row of the predicted class, its probability, and up to `top_k` classes with theirs. Classes with
    equal probabilities keep their order on every machine.

    Args:
        names: names of the classes.
        probability_K: probability of each class.
        top_k: number of classes in the row.
        threshold: of two classes, the probability from which on the second one is predicted; None: the most probable
            class is predicted.
    """
    order = ranked_order(probability_K, threshold)[: min(top_k, len(names))]
    top = [{"class": names[k], "probability": round(float(probability_K[k]), 6)} for k in order]
    return {**top[0], "top": top}


def ranked_order(probability_K: np.ndarray, threshold: Optional[float] = None) -> np.ndarray:
    """Returns the numbers of the classes, (K,), the predicted one first; arguments as in `ranked_classes`."""
    if threshold is not None and len(probability_K) == 2:
        return np.array([1, 0] if probability_K[1] >= threshold else [0, 1])
    return (-probability_K).argsort(kind="stable")


def binary_row(names: Sequence[str], probability: float, threshold: Optional[float] = None) -> Dict[str, Any]:
    """Returns the row of a sample: the predicted class with its own probability, and both classes.

    Args:
        names: names of the two classes; the second one is the positive class.
        probability: probability of the positive class.
        threshold: probability from which on the positive class is predicted; None: 0.5.
    """
    pairs = [(names[-1], probability), (names[0], 1.0 - probability)]
    pairs = pairs if probability >= (0.5 if threshold is None else threshold) else pairs[::-1]
    top: List[Dict[str, Any]] = [{"class": name, "probability": round(value, 6)} for name, value in pairs]
    return {**top[0], "top": top}
