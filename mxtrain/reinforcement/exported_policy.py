"""Chooses actions for observations with an exported network. Exported folders have a copy of this module."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, json_lines_of
from mxtrain.reinforcement.action_limits import ActionLimits
from mxtrain.reinforcement.flattening import Leaf, read_leaves
from mxtrain.reinforcement.policy import Actions

READS_JSON_LINES = True
"""Files in .json may hold lines of JSON as well, besides arrays of the network."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    return f"lines of JSON, of which each is an observation: {_described(signature)}"


def _described(signature: Dict[str, Any]) -> str:
    names = [".".join(map(str, leaf.path)) for leaf in leaves_of_facts(signature) if leaf.path]
    if names:
        return f"objects with {', '.join(names)}, or lists of all numbers"
    shape = native_shape(signature)
    sizes = " x ".join(map(str, shape))
    return f"nested lists of {sizes} numbers" if len(shape) > 1 else f"a list of {sizes} numbers"


def leaves_of_facts(signature: Dict[str, Any]) -> List[Leaf]:
    """Returns the parts of composed observations; empty for others."""
    return [Leaf.from_json(values) for values in signature["facts"].get("leaves", ())]


def native_shape(signature: Dict[str, Any]) -> Sequence[int]:
    """Returns the shape of an observation as the environment has it."""
    images = signature["facts"].get("images")
    shape: Sequence[int] = images["native"] if images else signature["signature"]["shape"]
    return shape


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the most probable action for each observation, as the environment takes it, and the predicted value.

    Args:
        folder: exported folder.
        content: lines of JSON, each an observation.
        name: name of the file.

    Raises:
        ValueError: an observation has another shape, or numbers that are not finite.
    """
    for line, row in json_lines_of(content, name):
        location = f"{name}:{line}"
        yield {"file": location, **act(folder, _read(folder.signature, row, location), location)}


def _read(signature: Dict[str, Any], row: Any, location: str) -> np.ndarray:
    """Converts an observation of JSON to an array as `act` takes it.

    Raises:
        ValueError: it is no observation.
    """
    leaves, shape = leaves_of_facts(signature), tuple(native_shape(signature))
    try:
        array = np.asarray(row, np.float32)
    except (ValueError, TypeError) as error:
        if not leaves:
            raise ValueError(f"{location} is no observation, which is {_described(signature)}") from error
        array = np.zeros(0, np.float32)
    if not leaves or array.shape == shape:
        return array
    try:
        return read_leaves(leaves, row)
    except ValueError as error:
        raise ValueError(f"{location} {error}") from error


def act(folder: ExportedFolder, observation: np.ndarray, location: str = "the observation") -> Dict[str, Any]:
    """Returns the most probable action for one observation, and the predicted value.

    Args:
        folder: exported folder.
        observation: as the environment gives it. Observations of composed spaces are one vector, see `read_leaves`.
        location: source location, for messages.

    Raises:
        ValueError: the observation has another shape, or numbers that are not finite.
    """
    signature, facts = folder.signature, folder.signature["facts"]
    shape = tuple(native_shape(signature))
    if observation.shape != shape:
        raise ValueError(f"{location} has the shape {observation.shape}; an observation has {shape}")
    if not np.isfinite(observation).all():
        raise ValueError(f"{location} holds a number that is not finite")
    if facts.get("images"):
        image = np.transpose(observation, facts["images"]["order"]).reshape(signature["signature"]["shape"])
        observation = image * np.float32(facts["images"]["scale"])
    (spec,) = signature["inputs"]
    output_1O = folder.run({spec["name"]: observation[None].astype(spec["dtype"])})["output"]
    actions = Actions.from_json(signature["signature"]["actions"])
    no_noise = np.zeros((1, actions.count or actions.size), np.float32)
    (action,) = ActionLimits.from_json(facts["limits"]).actions_for(actions, actions.choose(output_1O, no_noise))
    native_action = action if isinstance(action, int) else np.asarray(action).tolist()
    return {"action": native_action, **actions.estimates(output_1O[0])}
