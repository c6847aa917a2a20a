"""Ways to corrupt samples, with which `eval` measures how metrics fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Sequence

if TYPE_CHECKING:
    from mxtrain.data.loading.samples import Samples


@dataclass(frozen=True)
class Corruption:
    """A way to corrupt the samples of a split. Imports no MXNet.

    Attributes:
        severities: allowed severities, ascending.
        apply: function (samples, severity) -> corrupted samples.
    """

    severities: Sequence[int]
    apply: Callable[[Samples, int], Samples]
