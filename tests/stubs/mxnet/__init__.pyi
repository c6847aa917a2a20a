"""The classes of MXNet 1.9.1 that stand in annotations. All else is Any."""

from typing import Any

from . import context as context
from . import gluon as gluon
from . import ndarray as ndarray
from . import symbol as symbol
from .context import Context as Context

nd = ndarray
sym = symbol

def __getattr__(name: str) -> Any: ...
