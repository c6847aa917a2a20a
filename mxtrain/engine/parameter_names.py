"""What the names of parameters say. Imports no MXNet."""

from __future__ import annotations

ROLES = {
    **{role: role for role in ("weight", "gamma", "beta", "bias", "running_mean", "running_var")},
    "moving_mean": "running_mean",
    "moving_var": "running_var",
}
"""How a name ends -> what the parameter is to its layer."""


def role_of(name: str) -> str:
    """What a parameter is to its layer: "gamma" for `features.1.gamma`, and for `features.net0_batchnorm1_gamma`, as
    parameters of a `gluon.SymbolBlock` are called; the last part of the name where that is none of `ROLES`."""
    last = name.rpartition(".")[2]
    return next((role for end, role in ROLES.items() if last == end or last.endswith(f"_{end}")), last)
