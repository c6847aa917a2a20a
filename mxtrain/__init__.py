"""mxtrain: declarative training on Apache MXNet. Importing this package imports no MXNet.

The functions and classes of the Python API are in `mxtrain.api`, and are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any, List

__version__ = "0.1.0"
__all__ = [
    "Predictions",
    "Run",
    "Session",
    "__version__",
    "compose",
    "dry_run",
    "evaluate",
    "load",
    "lr_find",
    "predict",
    "session",
    "soup",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    # Not imported at once: `mxtrain --help` imports this package, and the API needs Hydra and pydantic.
    if name in __all__:
        homes = {
            "Session": "mxtrain.custom_loop",
            "session": "mxtrain.custom_loop",
            "lr_find": "mxtrain.cli.lr_find",
        }
        return getattr(importlib.import_module(homes.get(name, "mxtrain.api")), name)
    raise AttributeError(f"module 'mxtrain' has no attribute '{name}'")


def __dir__() -> List[str]:
    return [*globals(), *__all__]
