"""Answers of `predict` for people: classes, numbers, boxes; other outputs as they are."""

from __future__ import annotations

import base64
from typing import Any, Dict, Mapping

import numpy as np

from mxtrain.data.class_rows import described_classes
from mxtrain.data.exported_folder import targets_in
from mxtrain.data.number_rows import described_numbers, num_outputs
from mxtrain.exporting import standalone
from mxtrain.serving.errors import RequestError
from mxtrain.serving.models import ServedModel
from mxtrain.serving.protocol import require_finite

TOP = 5


def describe_sample(
    model: ServedModel, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], about: Any = None
) -> Dict[str, Any]:
    """Returns the answer for one sample.

    Args:
        model: of the outputs.
        inputs, outputs: of the sample, (1, ...) each.
        about: facts of the sample, see `ReadBody.about`; None if the client has sent arrays.

    Raises:
        RequestError: an output holds numbers that are not finite.
    """
    for name, array in outputs.items():
        require_finite(name, array)
    answer = model.reader.describe(inputs, outputs, about) if model.reader is not None else None
    if answer is not None:
        return {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for name, value in answer.items()
        }
    names = model.class_names
    if "probabilities" in outputs and outputs["probabilities"].shape == (1, len(names)):
        try:
            return described_classes(model.signature, outputs["probabilities"][0], TOP)
        except ValueError as error:
            raise RequestError(422, f"the signature.json of the network is damaged: {error}.") from error
    rows = outputs.get(standalone.RANKED)
    if rows is not None and rows.ndim == 3 and rows.shape[2] >= 6:
        # Suppressed rows are filled with -1.
        return {"detections": [_detection(row, names) for row in rows[0] if row[0] >= 0]}
    number = outputs.get("output")
    if "Number" in targets_in(model.signature) and number is not None:
        try:
            if number.size == num_outputs(model.signature):
                return described_numbers(model.signature, number)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RequestError(422, f"the signature.json of the network is damaged: {error}.") from error
    return {name: array[0].tolist() if array.ndim else array.tolist() for name, array in outputs.items()}


def predicted_class(model: ServedModel, answer: Mapping[str, Any]) -> str:
    """Returns the class that an answer says, for the figures; empty if it says none."""
    return str(answer.get("class", ""))


def _detection(row: np.ndarray, names: Any) -> Dict[str, Any]:
    number = int(row[0])
    return {
        "class": names[number] if number < len(names) else number,
        "score": round(float(row[1]), 6),
        "box": [round(float(edge), 2) for edge in row[2:6]],
    }
