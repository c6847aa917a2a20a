"""Scale of a number to predict: networks learn it with mean 0 and deviation 1 over the training samples.

The scale belongs to the signature, which checkpoints keep. Losses are in units of the deviation; predictions and
metrics are in the target's own unit.

Legend: N samples.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Sequence, Tuple

import numpy as np

from mxtrain.data.signature import TargetScale
from mxtrain.errors import CheckpointError, run_dir_setting

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature

_CLOSE = 1e-9
_CONSTANT = 1e-7


def with_target_scale(signature: Signature, target_N: np.ndarray, names: Sequence[str] = ()) -> Signature:
    """Returns a signature with mean and deviation of the targets of the training samples.

    The sums are exact, so that every machine gets the same bits.

    Args:
        signature: signature of the network.
        target_N: targets, (N,), or of several targets (N, T).
        names: names of several targets; empty: there is one.
    """
    if names:
        scales = [TargetScale(name, *_scale_of(column_N)) for name, column_N in zip(names, target_N.T)]
        return replace(signature, targets=tuple(scales))
    mean, std = _scale_of(target_N)
    return replace(signature, target_mean=mean, target_std=std)


def _scale_of(target_N: np.ndarray) -> Tuple[float, float]:
    values = target_N.astype(np.float64)
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((values - mean) ** 2) / len(values))
    is_constant = deviation <= _CONSTANT * abs(mean) or deviation == 0
    return mean, 1.0 if is_constant else deviation


def require_same_scale(signature: Signature, before: Signature, source: str) -> None:
    """Refuses to train on a network whose output has another scale now.

    Raises:
        CheckpointError: the targets of the training samples differ from those of the checkpoint.
    """
    names, names_then = ([target.name for target in each.targets] for each in (signature, before))
    if names != names_then:
        raise CheckpointError(
            f"{source} was trained with {_listed(names_then)}; now there {'are' if names else 'is'} {_listed(names)}. "
            f"Name the targets that it was trained with, or choose another {run_dir_setting()}."
        )
    for target, target_then in zip(signature.targets, before.targets):
        if not all(
            math.isclose(a, b, rel_tol=_CLOSE, abs_tol=_CLOSE * target.std) for a, b in zip(target[1:], target_then[1:])
        ):
            raise CheckpointError(
                f"{source} was trained with a target '{target.name}' of mean {target_then.mean:g} and deviation "
                f"{target_then.std:g}; now they are {target.mean:g} and {target.std:g}. Name the data that it was "
                f"trained with, or choose another {run_dir_setting()}."
            )
    now, then = ((each.target_mean, each.target_std) for each in (signature, before))
    if all(math.isclose(a, b, rel_tol=_CLOSE, abs_tol=_CLOSE * now[1]) for a, b in zip(now, then)):
        return
    if then == (0.0, 1.0):
        reason = "by a version that did not standardise targets; `eval` and `predict` still read it"
    else:
        reason = f"with targets of mean {then[0]:g} and deviation {then[1]:g}; now they have {now[0]:g} and {now[1]:g}"
    raise CheckpointError(
        f"{source} was trained {reason}. Name the data that it was trained with, or choose another {run_dir_setting()}."
    )


def _listed(names: Sequence[str]) -> str:
    return f"the targets {', '.join(names)}" if names else "one target"


def target_remark(signature: Signature, val_target_N: np.ndarray) -> str:
    """Returns the scale in words, and the errors on the validation samples of predicting the mean for each."""
    if signature.targets:
        means = np.array([target.mean for target in signature.targets])
        error_T = np.sqrt(((val_target_N.astype(np.float64) - means) ** 2).mean(axis=0)).tolist()
        scales = [
            f"{target.name}: mean {target.mean:.6g}, deviation {target.std:.6g}, {error:.6g}"
            for target, error in zip(signature.targets, error_T)
        ]
        return (
            f"{len(scales)} targets, whose losses are in units of their deviations, and the root mean squared error of "
            f"their means on the validation samples ({'; '.join(scales)})"
        )
    error_N = val_target_N.astype(np.float64) - signature.target_mean
    return (
        f"targets have mean {signature.target_mean:.6g} and deviation {signature.target_std:.6g}, and the loss is in "
        f"units of the deviation; this mean, predicted for each validation sample, has root mean squared error "
        f"{math.sqrt(float((error_N**2).mean())):.6g} and mean absolute error {float(np.abs(error_N).mean()):.6g}"
    )
