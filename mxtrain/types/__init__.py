"""Types that the packages share: descriptions (`Spec`), and the values that are passed between packages.

This package does not import MXNet. A description is a frozen, validated object built from YAML. Its `build...` methods
import MXNet only when they are called, so that a wrong description is rejected without MXNet.

Callbacks of users import `Callback` and the values of its events from here; they are defined in
`mxtrain.callback.protocol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.types.artifacts import Artifact as Artifact
from mxtrain.types.artifacts import Audio as Audio
from mxtrain.types.artifacts import Figure as Figure
from mxtrain.types.artifacts import Table as Table
from mxtrain.types.artifacts import TextLines as TextLines
from mxtrain.types.batch import Batch as Batch
from mxtrain.types.batch import DistinctIds as DistinctIds
from mxtrain.types.batch import Shape as Shape
from mxtrain.types.batch import Shapes as Shapes
from mxtrain.types.batch import Stateful as Stateful
from mxtrain.types.batch import shapes_of as shapes_of
from mxtrain.types.fields import MAX_COUNT as MAX_COUNT
from mxtrain.types.fields import BatchSize as BatchSize
from mxtrain.types.fields import Files as Files
from mxtrain.types.fields import FilesInRoot as FilesInRoot
from mxtrain.types.fields import Finite as Finite
from mxtrain.types.fields import Fraction as Fraction
from mxtrain.types.fields import Names as Names
from mxtrain.types.fields import NonNegative as NonNegative
from mxtrain.types.fields import NonNegativeFloat as NonNegativeFloat
from mxtrain.types.fields import OpenFraction as OpenFraction
from mxtrain.types.fields import PathText as PathText
from mxtrain.types.fields import Positive as Positive
from mxtrain.types.fields import PositiveFloat as PositiveFloat
from mxtrain.types.fields import ProperFraction as ProperFraction
from mxtrain.types.fields import Range as Range
from mxtrain.types.fields import expand_path as expand_path
from mxtrain.types.fields import require_quoted as require_quoted
from mxtrain.types.named_int import NamedFlags as NamedFlags
from mxtrain.types.named_int import NamedInt as NamedInt
from mxtrain.types.spec import Spec as Spec

if TYPE_CHECKING:
    from mxtrain.callback.protocol import BY_HAND as BY_HAND
    from mxtrain.callback.protocol import OF_EPOCH as OF_EPOCH
    from mxtrain.callback.protocol import Callback as Callback
    from mxtrain.callback.protocol import CommandLine as CommandLine
    from mxtrain.callback.protocol import GpuMemory as GpuMemory
    from mxtrain.callback.protocol import Progress as Progress
    from mxtrain.callback.protocol import Result as Result
    from mxtrain.callback.protocol import RunInfo as RunInfo
    from mxtrain.callback.protocol import Validation as Validation

_EVENTS = {
    "BY_HAND",
    "OF_EPOCH",
    "Callback",
    "CommandLine",
    "GpuMemory",
    "Progress",
    "Result",
    "RunInfo",
    "Validation",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _EVENTS:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        from mxtrain.callback import protocol  # which needs types of this package

        return getattr(protocol, name)
