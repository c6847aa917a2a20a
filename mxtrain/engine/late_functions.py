"""Defers the compilation of functions that a library generates as source text, until their first call.

At each import MXNet generates and compiles the Python source of 2,500 operators, of which a run calls a few hundred.
Measured: importing MXNet takes 1.13 s of CPU time, and 2.33 s without this module (medians of 5 alternating runs).

Reasons: docs/decisions/0089-code-that-pays.md.
"""

from __future__ import annotations

import builtins
import re
import sys
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Callable, Collection, Dict, Iterator

_DEFINITION = re.compile(r"\s*def (\w+)\(")
_PLACEHOLDER = "placeholder of _Pending"


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    # The literal must equal `_PLACEHOLDER`: `_Pending` puts itself in its place among the constants of a copy.
    return "placeholder of _Pending".call(args, kwargs)  # type: ignore[attr-defined]


class _Pending:
    """A function whose source has not been compiled yet.

    `function` exists from the start and keeps its identity, so that other modules can import it; only its code changes.
    """

    def __init__(self, execute: Callable[..., None], source: str, name: str, names: Dict[str, Any]) -> None:
        self._execute, self._source, self._name = execute, source, name
        constants = tuple(self if constant == _PLACEHOLDER else constant for constant in _stand_in.__code__.co_consts)
        # A function object of its own: `functools.wraps` and attributes such as `__doc__` have to work
        # before the first call.
        self.function = FunctionType(_stand_in.__code__.replace(co_name=name, co_consts=constants), names, name)

    def call(self, args: Any, kwargs: Dict[str, Any]) -> Any:
        """Compiles the source, replaces the code of the function permanently, and calls it."""
        namespace: Dict[str, Any] = {}
        self._execute(self._source, self.function.__globals__, namespace)
        compiled = namespace[self._name]
        # The code is replaced last. Until then a call in another thread also gets here, and does the same.
        self.function.__defaults__, self.function.__kwdefaults__ = compiled.__defaults__, compiled.__kwdefaults__
        self.function.__code__ = compiled.__code__
        return self.function(*args, **kwargs)


@contextmanager
def compiled_late(makers: Collection[str]) -> Iterator[None]:
    """Makes `exec(source, None, local)` in functions of these names define functions that are compiled when called.

    Code may set attributes of these functions, which keep their identity. All other calls of `exec` are unchanged.

    Args:
        makers: names of the functions that call `exec`.
    """
    execute = builtins.exec

    def late(source: Any, names: Any = None, local: Any = None, **options: Any) -> None:
        caller = sys._getframe(1)
        definition = _DEFINITION.match(source) if isinstance(source, str) and caller.f_code.co_name in makers else None
        # Only MXNet's makers call `exec` in this form; any other call, by whatever library, keeps its meaning.
        if definition is not None and names is None and local is not None:
            local[definition[1]] = _Pending(execute, source, definition[1], caller.f_globals).function
            return
        if local is None:
            local = caller.f_locals if names is None else names
        execute(source, caller.f_globals if names is None else names, local, **options)

    builtins.exec = late
    try:
        yield
    finally:
        builtins.exec = execute
