"""Functions that a library makes of source text when it is imported, compiled when they are first called.

MXNet writes the Python source of 2,500 operators in each start and compiles all of it, for the few hundred that a run
calls. Measured: importing MXNet takes 1.13 s of processor time, and 2.33 s without this (medians of 5 in turn).
"""

from __future__ import annotations

import builtins
import re
import sys
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Callable, Collection, Dict, Iterator

_HEAD = re.compile(r"\s*def (\w+)\(")
_PLACE = "placeholder of _Pending"


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    # The text of `_PLACE` as a literal: `_Pending` puts itself there, among the constants of the code.
    return "placeholder of _Pending".call(args, kwargs)  # type: ignore[attr-defined]


class _Pending:
    """A function whose source has not been compiled."""

    def __init__(self, execute: Callable[..., None], source: str, name: str, names: Dict[str, Any]) -> None:
        self._execute, self._source, self._name = execute, source, name
        constants = tuple(self if constant == _PLACE else constant for constant in _stand_in.__code__.co_consts)
        self.function = FunctionType(_stand_in.__code__.replace(co_name=name, co_consts=constants), names, name)

    def call(self, args: Any, kwargs: Dict[str, Any]) -> Any:
        """Gives the function the code that it should have, for good, and calls it."""
        made: Dict[str, Any] = {}
        self._execute(self._source, self.function.__globals__, made)
        real = made[self._name]
        # The code last: until then another thread's call comes here, too, and does the same.
        self.function.__defaults__, self.function.__kwdefaults__ = real.__defaults__, real.__kwdefaults__
        self.function.__code__ = real.__code__
        return self.function(*args, **kwargs)


@contextmanager
def compiled_late(makers: Collection[str]) -> Iterator[None]:
    """While it lasts, `exec(source, None, local)` in functions of these names defines what compiles itself when called.

    A maker may change the function's attributes: the object stays the same. Whatever else is executed is left alone.
    """
    execute = builtins.exec

    def late(source: Any, names: Any = None, local: Any = None, **options: Any) -> None:
        caller = sys._getframe(1)
        head = _HEAD.match(source) if isinstance(source, str) and caller.f_code.co_name in makers else None
        if head is not None and names is None and local is not None:
            local[head[1]] = _Pending(execute, source, head[1], caller.f_globals).function
            return
        if local is None:
            local = caller.f_locals if names is None else names
        execute(source, caller.f_globals if names is None else names, local, **options)

    builtins.exec = late
    try:
        yield
    finally:
        builtins.exec = execute
