"""mxtrain: declarative training on Apache MXNet. Importing this package imports no MXNet.

The functions, classes and errors of the Python API are in other modules, and are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__version__ = "0.1.0"

_MODULES: Dict[str, str] = {
    **dict.fromkeys(
        ("check_data", "compose", "convert_data", "dry_run", "explain", "guess_data"), "mxtrain.api.descriptions"
    ),
    **dict.fromkeys(
        ("average", "check_export", "evaluate", "export", "predict", "slim", "soup"), "mxtrain.api.networks"
    ),
    **dict.fromkeys(("diff", "push", "replay", "reproduce"), "mxtrain.api.records"),
    **dict.fromkeys(("Run", "load"), "mxtrain.api.run"),
    **dict.fromkeys(("Sweep", "sweep", "tune"), "mxtrain.api.searches"),
    **dict.fromkeys(("launch", "lr_find", "plan", "score", "train", "verify"), "mxtrain.api.training"),
    **dict.fromkeys(("Session", "session"), "mxtrain.api.custom_loop"),
    "Predictions": "mxtrain.workflows.predict",
    **{name: f"mxtrain.workflows.{name}" for name in ("clean", "doctor", "inspect", "report", "runs", "serve")},
    **dict.fromkeys(
        (
            "MxtrainError",
            "ConfigError",
            "DataError",
            "DownloadError",
            "WeightsError",
            "CheckpointError",
            "NoCheckpoint",
            "DamagedCheckpoint",
            "UnreadableCheckpoint",
            "RunDirectoryError",
            "NonFiniteError",
            "NotProven",
            "WorseThanAllowed",
        ),
        "mxtrain.errors",
    ),
}
"""Public name -> module that defines it. `__init__.pyi` repeats the names for type checkers."""

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604  # strings


def __getattr__(name: str) -> Any:
    # Not imported at once: `mxtrain --help` imports this package, and the API needs Hydra and pydantic.
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    from importlib.util import find_spec  # its import would delay the first line of each command

    # A new command needs no entry above: `mxtrain.x` is the function `x` of its workflow.
    workflow = f"mxtrain.workflows.{name}"
    if not name.startswith("_") and find_spec(workflow) is not None:
        function = getattr(importlib.import_module(workflow), name, None)
        if function is not None:
            return function
    from mxtrain.errors import did_you_mean

    raise AttributeError(f"module 'mxtrain' has no attribute '{name}'.{did_you_mean(name, _MODULES)}")


def __dir__() -> List[str]:
    return [*globals(), *__all__]


class _MovedModules:
    """Finder of modules that have moved; Python asks it for what no other finder knows."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        """Returns the spec of a module by its old path; None if mxtrain never had it."""
        # `import mxtrain.train` must fail: Python would set the module as `mxtrain.train`, in place of the function.
        if not name.startswith("mxtrain.") or name[len("mxtrain.") :] in _MODULES:
            return None
        return importlib.import_module("mxtrain.config.moved").find_moved_module(name)


sys.meta_path.append(_MovedModules)
