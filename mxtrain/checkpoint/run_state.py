"""Validates the state of a run's checkpoint, which may be untrusted, before any of it is used."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Mapping, Optional, Union

from mxtrain.checkpoint.contents import STATE, Checkpoint
from mxtrain.checkpoint.ranking import VAL_LOSS
from mxtrain.errors import CheckpointError, DamagedCheckpoint, LaterCheckpoint
from mxtrain.files.json_form import NUMBER, problems_of, unknown_keys

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import JsonForm

_MAX_DESCRIPTION_DEPTH = 30
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


_RUN_STATE: JsonForm = {
    "run": {
        "description": {"*": object},
        "input": {"*": object},
        "batch_size": int,
        "cut_before": [str],
        "threads": str,
        "own_operators": str,
        "workers": int,
        "updates": bool,
        "data?": {"files": {"*": str}, "splits": {"*": {"samples": int, "sha256": str}}},
    },
    "train": {
        "step": int,
        "epoch": int,
        "epoch_step": int,
        "epoch_sums": [NUMBER],
        "window_sums": [NUMBER],
        "validated_step": int,
        "validation_due": bool,
        "values": {"*": (*NUMBER, type(None))},
        "early_stopping": {"*": object},
        "best": (dict, type(None)),
        "unmoved": {"*": (*NUMBER, type(None))},
    },
    "optimizer": {"update_counts": {"*": int}, "attributes": {"*": NUMBER}, "cum_counts": {"*": int}},
    "scaling?": {"*": NUMBER},
    "states?": {"*": {"*": object}},
    "averaged_steps?": [int],  # of an average, see `checkpoint.average`
    "soup?": {
        "method": str,
        "metric": str,
        "members": [
            {"path": str, "step": int, "value": (*NUMBER, type(None)), "kept": bool},
        ],
    },  # of an average of several runs, see `checkpoint.soup`
    "slimmed_step?": int,  # of a network without pruned channels, see `slim`
}
"""The form of a run's state; that of its signature is in the signature's class."""


def require_run_state(checkpoint: Checkpoint) -> None:
    """Checks that the state of a checkpoint has all fields of a run's state, and no others.

    Unknown fields are rejected, since ignoring a field of a later version could change the results.

    Args:
        checkpoint: the checkpoint of a run.

    Raises:
        DamagedCheckpoint: a field is missing or has another type; the message names the first one.
        LaterCheckpoint: there are unknown fields; the message lists them.
    """
    for problem in problems_of(checkpoint.state, _RUN_STATE):
        raise DamagedCheckpoint(f"The checkpoint {checkpoint.path} cannot be used: in {STATE}, {problem}.")
    problem = _problem_of_description(checkpoint.state["run"]["description"])
    if problem:
        raise DamagedCheckpoint(
            f"The checkpoint {checkpoint.path} cannot be used: the description in {STATE} {problem}."
        )
    if checkpoint.state["train"]["step"] != checkpoint.step:
        raise DamagedCheckpoint(
            f"The checkpoint {checkpoint.path} cannot be used: {STATE} is of step {checkpoint.step} and of "
            f"{checkpoint.state['train']['step']}."
        )
    unknown = list(unknown_keys(checkpoint.state, _RUN_STATE))
    if unknown:
        raise LaterCheckpoint(
            f"The checkpoint {checkpoint.path} cannot be used: {STATE} holds {', '.join(unknown)}, which this version "
            "of mxtrain does not know. A later one made it: use that one."
        )


def validation_loss(checkpoint: Checkpoint) -> Optional[float]:
    """Returns the validation loss at the step of a checkpoint; None if there was no validation at this step.

    The state need not be validated before: all other fields are ignored.
    """
    train = checkpoint.state.get("train")
    values = train.get("values") if isinstance(train, dict) and train.get("validated_step") == checkpoint.step else None
    loss = values.get(VAL_LOSS) if isinstance(values, dict) else None
    return float(loss) if isinstance(loss, NUMBER) and not isinstance(loss, bool) else None


def require_same_arrays(
    expected: Mapping[str, Union[NDArray, np.ndarray]], loaded: Mapping[str, np.ndarray], subject: str
) -> None:
    """Checks that arrays of a checkpoint have the names and shapes of this network or optimizer.

    Args:
        expected: name -> array of the network or optimizer.
        loaded: name -> array of the checkpoint.
        subject: subject of the message, e.g. the path of the checkpoint.

    Raises:
        CheckpointError: names or shapes differ.
    """
    odd = sorted(set(expected) ^ set(loaded))
    if odd:
        raise CheckpointError(f"{subject} does not fit: only one of the two has {', '.join(odd[:5])}.")
    for name, value in expected.items():
        if tuple(value.shape) != tuple(loaded[name].shape):
            shape = loaded[name].shape
            raise CheckpointError(f"{subject} does not fit: '{name}' has shape {shape}, not {value.shape}.")


def _problem_of_description(description: object) -> str:
    """Returns the end of the sentence "The description ..." for one that no run can have written; else "".

    Names must be on one line for OmegaConf and for messages. The depth is limited because OmegaConf recurses.
    """
    # Level by level: recursion over an untrusted description could exhaust the stack.
    level = [description]
    for _ in range(_MAX_DESCRIPTION_DEPTH):
        mappings = [node for node in level if isinstance(node, dict)]
        odd = next((key for node in mappings for key in node if _CONTROL.search(key)), None)
        if odd is not None:
            return f"has the name {odd[:40]!r}, which holds a control character"
        lists = [node for node in level if isinstance(node, list)]
        level = [item for node in mappings for item in node.values()] + [item for node in lists for item in node]
        if not level:
            return ""
    return f"is nested deeper than {_MAX_DESCRIPTION_DEPTH} levels"
