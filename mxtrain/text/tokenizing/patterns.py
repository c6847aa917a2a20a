"""Refuses regular expressions of tokenizer files whose matching can take exponential time.

`tokenizers` matches with Oniguruma, which backtracks. The number of ways in which a pattern can match n characters is
at most w * n^d; both are computed from the pattern. A repetition of what itself matches in several ways is exponential.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

from mxtrain.errors import DataError

MOST_CHARACTERS = 20_000
MOST_WAYS = 100_000
MOST_DEGREE = 3
"""Patterns of published tokenizers have at most 2 in a branch."""
MOST_NESTED = 40
MOST_COPIES = 10_000
"""Copies of a part that nested counts, such as (a{100}){100}, ask for."""

_COUNT = re.compile(r"\{(\d{0,6})(,?)(\d{0,6})\}", re.ASCII)
_GROUP = re.compile(r"\?(?::|=|!|>|<=|<!|<[A-Za-z_]\w*>|[im-]+:|[im-]+\))", re.ASCII)
_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{4}|0[0-7]{0,2}|"
    r"[dDwWsShHbBAzZRXNOnrtfvae]|[^A-Za-z0-9])",
    re.ASCII | re.DOTALL,
)
_POSIX = re.compile(r"\[:\^?\w+:\]", re.ASCII)


class _MatchCost(NamedTuple):
    """At most `ways * n ** degree` ways to match n characters; `first` = the literal character it begins with."""

    ways: int = 1
    degree: int = 0
    first: Optional[str] = None
    copies: int = 1

    @property
    def is_fixed(self) -> bool:
        return self.ways == 1 and self.degree == 0


def require_bounded(pattern: str) -> None:
    """Raises a `DataError` if matching the pattern may take exponential time."""
    if len(pattern) > MOST_CHARACTERS:
        raise DataError(f"a regular expression of {len(pattern):,} characters; at most {MOST_CHARACTERS:,} are read")
    try:
        cost = _PatternReader(pattern).read()
        if cost.degree > MOST_DEGREE or cost.ways > MOST_WAYS:
            raise _UnboundedPattern("it can match in too many ways")
    except _UnboundedPattern as refused:
        excerpt = pattern if len(pattern) <= 80 else f"{pattern[:60]}..."
        raise DataError(f"the regular expression {excerpt!r} may take endless time: {refused}") from None


class _UnboundedPattern(Exception):
    """The reason against a pattern."""


class _PatternReader:
    """Recursive descent through a pattern of Oniguruma; whatever it does not know is refused."""

    def __init__(self, pattern: str) -> None:
        self._text, self._at, self._depth = pattern, 0, 0

    def read(self) -> _MatchCost:
        cost = self._alternatives()
        if self._at < len(self._text):
            raise _UnboundedPattern("a bracket is closed that was not opened")
        return cost

    def _alternatives(self) -> _MatchCost:
        branches = [self._sequence()]
        while self._next("|"):
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        copies = max(branch.copies for branch in branches)
        firsts = {branch.first.casefold() for branch in branches if branch.first is not None}
        if len(firsts) == len(branches) and all(branch.is_fixed for branch in branches):
            return _MatchCost(copies=copies)  # the first character decides
        return _MatchCost(
            sum(branch.ways for branch in branches), max(branch.degree for branch in branches), None, copies
        )

    def _sequence(self) -> _MatchCost:
        parts: List[_MatchCost] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._quantified(self._atom()))
        ways, degree = 1, 0
        for part in parts:
            ways, degree = ways * part.ways, degree + part.degree
            _require_few(ways)
        copies = max((part.copies for part in parts), default=1)
        return _MatchCost(ways, degree, parts[0].first if parts else None, copies)

    def _quantified(self, cost: _MatchCost) -> _MatchCost:
        while (counts := self._counts()) is not None:
            low, high = counts
            copies = cost.copies * max(low, high or 1)
            if copies > MOST_COPIES:
                raise _UnboundedPattern("counts in counts are too large")
            if high is None:
                if not cost.is_fixed:
                    raise _UnboundedPattern("it repeats what can itself match in several ways")
                cost = _MatchCost(1, 1, cost.first if low else None, copies)
            else:
                choices = max(high - low + 1, 1)
                if not cost.is_fixed and high > 20:
                    raise _UnboundedPattern("it repeats what can itself match in several ways")
                ways = cost.ways**high * choices if not cost.is_fixed else choices
                _require_few(ways)
                cost = _MatchCost(ways, cost.degree * high, cost.first if low else None, copies)
            # Lazy or possessive; behind {n,m}, a + is a further repetition in Oniguruma.
            if not self._next("?") and self._text[self._at - 1] != "}":
                self._next("+")
        return cost

    def _counts(self) -> Optional[tuple]:
        mark = self._text[self._at : self._at + 1]
        if mark and mark in "*+?":
            self._at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[mark]
        match = _COUNT.match(self._text, self._at)
        if not match or not (match[1] or match[3]):
            return None
        self._at = match.end()
        low = int(match[1] or 0)
        if not match[2]:
            return low, low
        return low, int(match[3]) if match[3] else None

    def _atom(self) -> _MatchCost:
        mark = self._text[self._at]
        if mark == "(":
            return self._group()
        if mark == "[":
            self._skip_class()
            return _MatchCost()
        if mark == "\\":
            return self._escape()
        self._at += 1
        return _MatchCost(first=None if mark in ".^$" else mark)

    def _escape(self) -> _MatchCost:
        match = _ESCAPE.match(self._text, self._at)
        if not match:
            raise _UnboundedPattern(f"{self._text[self._at : self._at + 2]} is not understood here")
        self._at = match.end()
        if match[0] in ("\\R", "\\X"):
            return _MatchCost(2)
        is_one = match[0][1] in "nrtfvae" or not match[0][1].isalnum()
        return _MatchCost(first=match[0] if is_one and len(match[0]) == 2 else None)

    def _group(self) -> _MatchCost:
        self._at += 1
        if self._text[self._at : self._at + 1] in ("?", "*"):
            match = _GROUP.match(self._text, self._at)
            if not match:
                raise _UnboundedPattern(f"({self._text[self._at : self._at + 3]} is not understood here")
            self._at = match.end()
            if match[0].endswith(")"):
                # (?i) applies to the end of its group, alternatives included.
                return self._nested(closes=False)
        return self._nested(closes=True)

    def _nested(self, closes: bool) -> _MatchCost:
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise _UnboundedPattern("it is nested too deep")
        cost = self._alternatives()
        self._depth -= 1
        if closes and not self._next(")"):
            raise _UnboundedPattern("a bracket is not closed")
        return cost

    def _skip_class(self) -> None:
        """Skips a character class, which may contain nested classes."""
        depth, is_first = 0, False
        while self._at < len(self._text):
            mark = self._text[self._at]
            posix = _POSIX.match(self._text, self._at) if depth else None
            if posix:
                self._at = posix.end()
            elif mark == "\\":
                self._at += 2
            elif mark == "[":
                depth, self._at = depth + 1, self._at + 1
                self._next("^")
                is_first = True
                if depth > MOST_NESTED:
                    raise _UnboundedPattern("it is nested too deep")
                continue
            elif mark == "]" and not is_first:
                depth, self._at = depth - 1, self._at + 1
                if not depth:
                    return
            else:
                self._at += 1
            is_first = False
        raise _UnboundedPattern("a class of characters is not closed")

    def _next(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += 1
        return True


def _require_few(ways: int) -> None:
    if ways > MOST_WAYS:
        raise _UnboundedPattern("it can match in too many ways")
