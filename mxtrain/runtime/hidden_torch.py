"""Imports packages as if PyTorch were not installed."""

from __future__ import annotations

import contextlib
import sys
from typing import Iterator


@contextlib.contextmanager
def hidden_torch() -> Iterator[None]:
    """Within it, `import torch` raises an ImportError; afterwards everything is as before.

    GluonCV 0.10.5 imports torch if it is there, and refuses to be imported beside torch 2, which it does not need.
    """
    before = sys.modules.get("torch")
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
        if before is not None:
            sys.modules["torch"] = before
