"""Decorators that enter functions into a table by the names of operators, for converters between graphs."""

from __future__ import annotations

from typing import Any, Callable, Dict, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def entering(table: Dict[str, Function]) -> Callable[..., Callable[[Function], Function]]:
    """Returns the decorator of a table.

    Args:
        table: name of an operator -> its function.

    Returns:
        Function of names, which returns a decorator that enters its function under each of them.
    """

    def of_names(*names: str) -> Callable[[Function], Function]:
        def enter(function: Function) -> Function:
            table.update(dict.fromkeys(names, function))
            return function

        return enter

    return of_names
