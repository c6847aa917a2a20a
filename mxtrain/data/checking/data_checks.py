"""Checks of `data check` that only one kind of dataset has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks
    from mxtrain.data.checking.problems import Findings

Extend = Callable[[Any, Mapping[str, "Checks"], "Findings"], Mapping[str, "Checks"]]


def _unchanged(dataset: Any, checks: Mapping[str, Checks], findings: Findings) -> Mapping[str, Checks]:
    return checks


@dataclass(frozen=True)
class DataChecks:
    """Checks of one dataset, in addition to the checks of all datasets.

    Attributes:
        kinds: kinds of problems that only this dataset reports, in addition to `checking.problems.KINDS`.
        extend: function (dataset, checks of each split, findings) -> checks of each split, with optional checks added
            that settings of the dataset ask for. Problems of the whole dataset go to `findings`.
    """

    kinds: Sequence[str] = ()
    extend: Extend = _unchanged

    def with_kinds(self, *kinds: str) -> DataChecks:
        """Returns these checks with other kinds of problems."""
        return replace(self, kinds=kinds)
