"""Roles of parameters by their names. Does not import MXNet."""

from __future__ import annotations

ROLES = {
    **{role: role for role in ("weight", "gamma", "beta", "bias", "running_mean", "running_var")},
    "moving_mean": "running_mean",
    "moving_var": "running_var",
}
"""Suffix of a name -> role of the parameter in its layer."""


def role_of(name: str) -> str:
    """Returns the role of a parameter in its layer; the last part of its name if that has no role in `ROLES`.

    It is "gamma" for `features.1.gamma`, and for `features.net0_batchnorm1_gamma`, a name of `gluon.SymbolBlock`.
    """
    last = name.rpartition(".")[2]
    return next((role for end, role in ROLES.items() if last == end or last.endswith(f"_{end}")), last)
