"""Checks of `data check` that only one kind of dataset has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks
    from mxtrain.data.checking.problems import Findings

Further = Callable[[Any, Mapping[str, "Checks"], "Findings"], Mapping[str, "Checks"]]


def _no_further(dataset: Any, checks: Mapping[str, Checks], findings: Findings) -> Mapping[str, Checks]:
    return checks


@dataclass(frozen=True)
class DataChecks:
    """Checks of one dataset, in addition to the checks of all datasets.

    Attributes:
        kinds: kinds of problems that only this dataset reports, in addition to `checking.problems.KINDS`.
        further: function (dataset, checks, findings) -> checks: adds optional checks of the description to the checks
            of each split. Problems of the whole dataset go to `findings`.
    """

    kinds: Sequence[str] = ()
    further: Further = _no_further

    def with_kinds(self, *kinds: str) -> DataChecks:
        """Returns these checks with other kinds of problems."""
        return replace(self, kinds=kinds)
