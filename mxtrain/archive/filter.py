"""Filters runs by a small language: `task=classification and (best>0.9 or not state=finished)`.

filter:      comparison, combined by `and`, `or`, `not` and parentheses; `and` binds tighter than `or`
comparison:  NAME OPERATOR VALUE with one of = == != > >= < <=
VALUE:       a number (also 2GB and 3d for size and age), or a text; quotes around spaces; = and != also take
             patterns (`model=resnet*`) and several values with commas (`state=failed,killed`)
"""

from __future__ import annotations

import fnmatch
import operator
import re
from dataclasses import dataclass
from typing import Callable, Dict, List, Sequence, Tuple, Union

from mxtrain.archive.fields import FIELDS, WORDS, check_field, needed_of, read_number, require_known, value_of
from mxtrain.archive.registry import STATES, ListedRun
from mxtrain.errors import ConfigError, did_you_mean

Test = Callable[[ListedRun], bool]
_PART = re.compile(
    r"\s*(?:(?P<parenthesis>[()])|(?P<operator>>=|<=|!=|==|=|>|<)|\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|"
    r"(?P<word>[^\s()<>=!\"']+))"
)
_ORDERS: Dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_MAX_LENGTH, _MAX_DEPTH = 10_000, 50


@dataclass(frozen=True)
class Filter:
    """A parsed filter.

    Attributes:
        test: returns True for a run that is kept.
        names: names of the fields, metrics and settings that it reads.
        text: the filter as it was typed.
    """

    test: Test
    names: Sequence[str]
    text: str

    @property
    def needed(self) -> List[str]:
        """Returns the properties of `ListedRun` that the filter reads."""
        return needed_of(self.names)

    def apply(self, runs: Sequence[ListedRun]) -> List[ListedRun]:
        """Returns the runs that pass.

        Raises:
            ConfigError: no run has one of the metrics or settings.
        """
        require_known(self.names, runs, f"where={self.text}")
        return [run for run in runs if self.test(run)]


def filters_of(where: Union[str, Sequence[str]]) -> List[str]:
    """Returns the filters of an argument `where`: one, several, or none if it is empty.

    Raises:
        ConfigError: it has another type, or one of several is empty.
    """
    filters = ([where] if where else []) if isinstance(where, str) else where
    if not isinstance(filters, (list, tuple)) or not all(isinstance(text, str) and text.strip() for text in filters):
        raise ConfigError(
            f"where={where!r:.60}: give a filter, or a list of filters: 'task=classification and best>0.9'."
        )
    return list(filters)


def parse_filter(filters: Sequence[str]) -> Filter:
    """Parses filters, all of which a run must pass.

    Raises:
        ConfigError: a filter is invalid; the message says where, and what is expected.
    """
    parsers = [_FilterParser(text) for text in filters]
    tests = [parser.parse() for parser in parsers]
    names = list(dict.fromkeys(name for parser in parsers for name in parser.names))
    return Filter(lambda run: all(test(run) for test in tests), names, " and ".join(filters))


class _FilterParser:
    """Recursive descent over the parts of one filter."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: List[str] = []
        self._parts: List[Tuple[str, str]] = []
        self._next = 0
        if len(text) > _MAX_LENGTH:
            raise ConfigError(f"where={text[:40]}...: at most {_MAX_LENGTH:,} characters are read.")
        position = 0
        while text[position:].strip():
            match = _PART.match(text, position)
            if match is None:
                raise self._wrong(f"'{text[position:].strip()[:20]}' cannot be read")
            kind = str(match.lastgroup)
            self._parts.append(("quoted" if kind in ("double", "single") else kind, match[kind]))
            position = match.end()

    def parse(self) -> Test:
        """Parses the whole text."""
        test = self._or(0)
        if self._next < len(self._parts):
            raise self._wrong(f"'and' or 'or' is missing before '{self._parts[self._next][1]}'")
        return test

    def _or(self, depth: int) -> Test:
        tests = [self._and(depth)]
        while self._take("word", "or"):
            tests.append(self._and(depth))
        return tests[0] if len(tests) == 1 else lambda run: any(test(run) for test in tests)

    def _and(self, depth: int) -> Test:
        tests = [self._not(depth)]
        while self._take("word", "and"):
            tests.append(self._not(depth))
        return tests[0] if len(tests) == 1 else lambda run: all(test(run) for test in tests)

    def _not(self, depth: int) -> Test:
        # Python's recursion limit would otherwise end the command with a traceback.
        if depth > _MAX_DEPTH:
            raise self._wrong(f"it is nested deeper than {_MAX_DEPTH} levels")
        if self._take("word", "not"):
            denied = self._not(depth + 1)
            return lambda run: not denied(run)
        if self._take("parenthesis", "("):
            test = self._or(depth + 1)
            if not self._take("parenthesis", ")"):
                raise self._wrong("a closing parenthesis is missing")
            return test
        return self._comparison()

    def _comparison(self) -> Test:
        kind, name = self._advance("a name such as task is missing at its end")
        if kind != "word":
            raise self._wrong(f"a name such as task is missing before '{name}'")
        check_field(name, f"where={self.text}")
        self.names.append(name)
        kind, symbol = self._advance(f"= or another comparison is missing after '{name}'")
        if kind != "operator":
            raise self._wrong(f"= or another comparison is missing after '{name}'")
        kind, value = self._advance(f"a value is missing after '{name}{symbol}'")
        if kind not in ("word", "quoted"):
            raise self._wrong(f"a value is missing after '{name}{symbol}'")
        if symbol in _ORDERS:
            return self._order(name, symbol, value)
        # Quotes make a comma part of the value.
        values = [value] if kind == "quoted" else value.split(",")
        for state in values if name == "state" else ():
            if not any(map(state.__contains__, "*?[")) and state not in STATES:
                near = did_you_mean(state, STATES)
                raise self._wrong(f"there is no state '{state}'.{near} States are {', '.join(STATES)}")
        test = _equals(name, values)
        return test if symbol in ("=", "==") else lambda run: not test(run)

    def _order(self, name: str, symbol: str, value: str) -> Test:
        number = read_number(value, name)
        if number is None or name in WORDS:
            reason = "is a text: compare it with = or !=" if name in WORDS else f"needs a number, not '{value}'"
            raise self._wrong(f"'{name}{symbol}' {reason}")
        compare, limit = _ORDERS[symbol], number

        def test(run: ListedRun) -> bool:
            actual = value_of(run, name)
            # A run without the value passes no comparison, in either direction.
            return isinstance(actual, (int, float)) and compare(actual, limit)

        return test

    def _take(self, kind: str, text: str) -> bool:
        is_next = self._next < len(self._parts) and self._parts[self._next] == (kind, text)
        self._next += is_next
        return is_next

    def _advance(self, missing: str) -> Tuple[str, str]:
        if self._next >= len(self._parts):
            raise self._wrong(missing)
        self._next += 1
        return self._parts[self._next - 1]

    def _wrong(self, reason: str) -> ConfigError:
        return ConfigError(
            f"where={self.text}: {reason}. Type for example where='task=classification and best>0.9'. Names are "
            f"{', '.join(FIELDS)}, metrics such as val/loss, and settings such as optimizer.lr."
        )


def _equals(name: str, values: Sequence[str]) -> Test:
    """Returns a test for equality with one of several numbers or patterns."""
    numbers = {number for number in (read_number(value, name) for value in values) if number is not None}

    def test(run: ListedRun) -> bool:
        actual = value_of(run, name)
        if isinstance(actual, (int, float)):
            return actual in numbers
        # `fnmatch.fnmatch` would ignore case on some systems.
        return actual is not None and any(fnmatch.fnmatchcase(actual, value) for value in values)

    return test
