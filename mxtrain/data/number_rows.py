"""Rows of predicted numbers: of one or several targets, with quantiles and intervals. Exported folders have a copy of
this module.

Legend: T targets, Q quantiles.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np


def number_row(
    names: Sequence[str], number_TP: np.ndarray, levels: Sequence[float], has_interval: bool
) -> Dict[str, Any]:
    """Returns the row of a sample.

    Args:
        names: names of the targets; empty if there is one.
        number_TP: for each target its value, then the quantiles, then the bounds of the interval.
        levels: levels of the quantiles.
        has_interval: True if there are bounds.
    """
    cells = []
    for number_P in np.round(number_TP.astype(np.float64), 6).tolist():
        cell: Dict[str, Any] = {"value": number_P[0]}
        if has_interval:
            cell.update(low=number_P[-2], high=number_P[-1])
        if levels:
            cell["quantiles"] = {f"{level:g}": value for level, value in zip(levels, number_P[1:])}
        cells.append(cell)
    return {"values": dict(zip(names, cells))} if names else cells[0]


def numbers_of(
    output_TQ: np.ndarray, scale_T2: np.ndarray, has_quantiles: bool, margin_T: Optional[np.ndarray]
) -> np.ndarray:
    """Returns value, quantiles and bounds of each target, (..., T, P), from outputs of a network.

    Quantiles are sorted, so that they do not cross: see Chernozhukov et al., "Quantile and Probability Curves without
    Crossing" (2010).

    Args:
        output_TQ: standardised outputs, (..., T, Q); one for each target without quantiles.
        scale_T2: mean and deviation of each target.
        has_quantiles: True if outputs are quantiles.
        margin_T: what is added to each side of the interval; None = there is no interval.
    """
    output_TQ = np.sort(output_TQ.astype(np.float64), axis=-1) * scale_T2[:, 1:] + scale_T2[:, :1]
    middle = output_TQ.shape[-1] // 2
    parts = [output_TQ[..., middle : middle + 1]]
    if has_quantiles:
        parts.append(output_TQ)
    if margin_T is not None:
        parts += [output_TQ[..., :1] - margin_T[:, None], output_TQ[..., -1:] + margin_T[:, None]]
    return np.concatenate(parts, axis=-1)


def described_numbers(signature: Mapping[str, Any], output: np.ndarray) -> Dict[str, Any]:
    """Returns the row of a sample for the output of an exported network, as `mxtrain predict` writes it.

    Args:
        signature: content of signature.json.
        output: output of the network for the sample.

    Raises:
        ValueError: the signature is damaged.
    """
    values, facts = signature["signature"], signature.get("facts") or {}
    levels = facts.get("quantiles") or []
    scales = targets_of(values)
    margins = facts.get("margins")
    try:
        output_TQ = np.ravel(output).reshape(len(scales), max(len(levels), 1))
        scale_T2 = np.array([[scale["mean"], scale["std"]] for scale in scales], np.float64)
        margin_T = None if margins is None else np.array(margins, np.float64).reshape(len(scales))
        number_TP = numbers_of(output_TQ, scale_T2, bool(levels), margin_T)
        names = [str(scale["name"]) for scale in scales if "name" in scale]
        return number_row(names, number_TP, [float(level) for level in levels], margins is not None)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError("the signature does not fit the output: damaged targets, quantiles or margins") from error


def num_outputs(signature: Mapping[str, Any]) -> int:
    """Returns the number of outputs of an exported network for a sample.

    Args:
        signature: content of signature.json.
    """
    levels = (signature.get("facts") or {}).get("quantiles") or [0.5]
    return len(targets_of(signature["signature"])) * len(levels)


def targets_of(values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Returns mean and deviation of each target, and its name if there are several.

    Args:
        values: signature of the checkpoint.
    """
    one = {"mean": values.get("target_mean", 0.0), "std": values.get("target_std", 1.0)}
    return values.get("targets") or [one]
