"""Scale of a number to predict: networks learn it with mean 0 and deviation 1 over the training samples.

The scale belongs to the signature, which checkpoints keep. Losses are in units of the deviation; predictions and
metrics are in the target's own unit.

Legend: N samples.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mxtrain.errors import CheckpointError, run_dir_setting

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature

_CLOSE = 1e-9
_CONSTANT = 1e-7


def with_target_scale(signature: Signature, target_N: np.ndarray) -> Signature:
    """Returns a signature with mean and deviation of the targets of the training samples.

    The sums are exact, so that every machine gets the same bits.
    """
    values = target_N.astype(np.float64)
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((values - mean) ** 2) / len(values))
    is_constant = deviation <= _CONSTANT * abs(mean) or deviation == 0
    return replace(signature, target_mean=mean, target_std=1.0 if is_constant else deviation)


def require_same_scale(signature: Signature, before: Signature, source: str) -> None:
    """Refuses to train on a network whose output has another scale now.

    Raises:
        CheckpointError: the targets of the training samples differ from those of the checkpoint.
    """
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


def target_remark(signature: Signature, val_target_N: np.ndarray) -> str:
    """Returns the scale in words, and the errors on the validation samples of predicting the mean for each."""
    error_N = val_target_N.astype(np.float64) - signature.target_mean
    return (
        f"targets have mean {signature.target_mean:.6g} and deviation {signature.target_std:.6g}, and the loss is in "
        f"units of the deviation; this mean, predicted for each validation sample, has root mean squared error "
        f"{math.sqrt(float((error_N**2).mean())):.6g} and mean absolute error {float(np.abs(error_N).mean()):.6g}"
    )
