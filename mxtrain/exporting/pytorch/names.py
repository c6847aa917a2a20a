"""Names of parameters in PyTorch."""

from __future__ import annotations

import re
from typing import Dict, Iterable

RENAMED = {"gamma": "weight", "beta": "bias", "alpha": "weight"}
_RECURRENT = re.compile(r"^([lr])(\d+)_(i2h|h2h)_(weight|bias)$")
_SIDES = {"i2h": "ih", "h2h": "hh"}


def torch_name(name: str) -> str:
    """Returns the name that PyTorch's layers give a parameter, e.g. body.1.weight for body.1.gamma.

    Args:
        name: structural name of the parameter.
    """
    path, dot, own = name.rpartition(".")
    matched = _RECURRENT.match(own)
    if matched is None:
        return f"{path}{dot}{RENAMED.get(own, own)}"
    direction, number, side, kind = matched.groups()
    return f"{path}{dot}{kind}_{_SIDES[side]}_l{number}{'_reverse' if direction == 'r' else ''}"


def torch_names(names: Iterable[str]) -> Dict[str, str]:
    """Returns the names in PyTorch by structural name. A name that another parameter would get, too, stays as it is."""
    own = sorted(names)
    renamed = {name: torch_name(name) for name in own}
    found = list(renamed.values())
    return {name: new if found.count(new) == 1 else name for name, new in renamed.items()}
