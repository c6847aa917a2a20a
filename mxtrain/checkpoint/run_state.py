"""Validates the state of a run's checkpoint before any of it is used: a checkpoint may come from anybody."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, Iterator, Mapping, Optional, Union

from mxtrain.checkpoint.contents import STATE, Checkpoint
from mxtrain.errors import CheckpointError, DamagedCheckpoint, LaterCheckpoint
from mxtrain.ranking import VAL_LOSS

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Wanted

_NUMBER = (int, float)
_MAX_DESCRIPTION_DEPTH = 30
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _run_state(input_state: Wanted) -> Wanted:
    """The form of a run's state."""
    return {
        "run": {
            "description": {"*": object},
            "input": input_state,
            "batch_size?": int, "cut_before?": [str], "threads?": str,
            "own_operators?": str, "workers": int, "updates?": bool,
        },
        "train": {
            "step": int, "epoch": int, "epoch_step": int, "epoch_sums": [_NUMBER], "window_sums?": [_NUMBER],
            "validated_step": int,
            "validation_due": bool, "values": {"*": (*_NUMBER, type(None))}, "early_stopping": {"*": object},
            "best": (dict, type(None)), "unmoved?": {"*": (*_NUMBER, type(None))},
            "elapsed_s?": object, "finished?": object,  # written by early versions, read by none
        },
        "optimizer": {"update_counts": {"*": int}, "attributes": {"*": _NUMBER}, "cum_counts": {"*": int}},
        "scaling?": {"*": _NUMBER}, "states?": {"*": {"*": object}},
        "averaged_steps?": [int],  # of an average, see `checkpoint.average`
    }  # fmt: skip


def require_run_state(checkpoint: Checkpoint, input_state: Wanted) -> None:
    """Refuses a checkpoint whose state is not that of a run, before something that is missing breaks the run.

    What this version does not know may change the numbers, so it is never passed over.

    Args:
        checkpoint: a run's.
        input_state: the form of what it says of the network's inputs.

    Raises:
        DamagedCheckpoint: names the first thing that is missing or of another kind.
        LaterCheckpoint: names all that a later version has put there.
    """
    wanted = _run_state(input_state)
    for problem in _problems(checkpoint.state, wanted, ""):
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
    unknown = list(_unknown(checkpoint.state, wanted, ""))
    if unknown:
        raise LaterCheckpoint(
            f"The checkpoint {checkpoint.path} cannot be used: {STATE} holds {', '.join(unknown)}, which this version "
            "of mxtrain does not know. A later one made it: use that one."
        )


def validation_loss(checkpoint: Checkpoint) -> Optional[float]:
    """The loss of the validation at a checkpoint's step; None where it says none. Nothing else of its state is read."""
    train = checkpoint.state.get("train")
    values = train.get("values") if isinstance(train, dict) and train.get("validated_step") == checkpoint.step else None
    loss = values.get(VAL_LOSS) if isinstance(values, dict) else None
    return float(loss) if isinstance(loss, _NUMBER) and not isinstance(loss, bool) else None


def require_same_arrays(
    own: Mapping[str, Union[NDArray, np.ndarray]], given: Mapping[str, np.ndarray], what: str
) -> None:
    """Refuses arrays that are not those of this network or optimizer.

    Args:
        own: name -> anything with a shape.
        given: of a checkpoint.
        what: that they are of, for messages.

    Raises:
        CheckpointError: names or shapes differ.
    """
    odd = sorted(set(own) ^ set(given))
    if odd:
        raise CheckpointError(f"{what} does not fit: only one of the two has {', '.join(odd[:5])}.")
    for name, array in own.items():
        if tuple(array.shape) != tuple(given[name].shape):
            raise CheckpointError(f"{what} does not fit: '{name}' has shape {given[name].shape}, not {array.shape}.")


def _problems(value: object, wanted: Wanted, path: str) -> Iterator[str]:
    if isinstance(wanted, dict):
        yield from _problems_of_mapping(value, wanted, path)
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            yield f"'{path}' is no list"
        else:
            for item in value:
                yield from _problems(item, wanted[0], f"{path}[]")
    elif not isinstance(value, wanted) or isinstance(value, bool) and wanted in (int, _NUMBER):
        yield f"'{path}' is a {type(value).__name__}"


def _problems_of_mapping(value: object, wanted: Dict[str, Wanted], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"'{path}' is no object"
        return
    named = {key.rstrip("?"): kind for key, kind in wanted.items() if key != "*"}
    for key in wanted:
        if not key.endswith("?") and key != "*" and key not in value:
            yield f"'{path}{'.' if path else ''}{key}' is missing"
    for key, item in value.items():
        if key in named and item is None and f"{key}?" in wanted:
            continue
        kind = named.get(key, wanted.get("*", object))
        yield from _problems(item, kind, f"{path}{'.' if path else ''}{key}")


def _problem_of_description(description: object) -> str:
    """Completes the sentence "The description ..." for one that no run has written; empty for all others.

    OmegaConf and the messages about a setting need names on one line, and take several calls for each level.
    """
    level = [description]
    for _ in range(_MAX_DESCRIPTION_DEPTH):
        mappings = [one for one in level if isinstance(one, dict)]
        odd = next((key for one in mappings for key in one if _CONTROL.search(key)), None)
        if odd is not None:
            return f"has the name {odd[:40]!r}, which holds a control character"
        lists = [one for one in level if isinstance(one, list)]
        level = [item for one in mappings for item in one.values()] + [item for one in lists for item in one]
        if not level:
            return ""
    return f"is nested deeper than {_MAX_DESCRIPTION_DEPTH} levels"


def _unknown(value: object, wanted: Optional[Wanted], path: str) -> Iterator[str]:
    """Keys where the set of keys is fixed and these are not among them."""
    if not isinstance(wanted, dict) or not isinstance(value, dict):
        return
    named = {key.rstrip("?"): kind for key, kind in wanted.items()}
    for key, item in value.items():
        name = f"{path}{'.' if path else ''}{key}"
        if key not in named and "*" not in named:
            yield f"'{name}'"
        else:
            yield from _unknown(item, named.get(key, named.get("*")), name)
