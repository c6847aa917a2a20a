"""Counts where a network drops something."""

from __future__ import annotations

import json
from typing import Any

from mxtrain.engine.backend import mx


def count_dropouts(network: Any, num_inputs: int, probability: float) -> int:
    """The operators that drop with this probability: MXNet's, and our own, which drop and compute at once."""
    found = network(*(mx.sym.var(f"input{number}") for number in range(num_inputs)))
    nodes = json.loads(mx.sym.Group(list(found) if isinstance(found, (list, tuple)) else [found]).tojson())["nodes"]
    return sum(node.get("attrs", {}).get("p") == str(probability) for node in nodes)
