"""The state of a run: the counters that, with the arrays, are all that a checkpoint needs to continue exactly."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional

if TYPE_CHECKING:
    from mxtrain.checkpoint.ranking import Unmoved
    from mxtrain.types.annotations import Best, Json, JsonObject


class LoopValues(NamedTuple):
    """Values of the validation split that a custom loop has measured with the present weights."""

    values: Mapping[str, float] = MappingProxyType({})
    """Metrics of the evaluator; empty if they were not measured."""
    more: Mapping[str, float] = MappingProxyType({})
    """Metrics of the loop's own functions, for the same row."""


NOT_MEASURED = LoopValues()


@dataclass
class TrainState:
    """The host side of a run. All counts are of finished work."""

    step: int = 0
    """Optimizer steps."""
    epoch: int = 0
    """Whole epochs."""
    epoch_step: int = 0
    """Steps of the epoch under way; 0 between epochs."""
    epoch_sums: List[float] = field(default_factory=list)
    """Sums of the training statistics over the epoch under way, as the meter lays them out."""
    window_sums: List[float] = field(default_factory=list)
    """Sums of the steps since the last point of the curves."""
    validated_step: int = 0
    """The step of the last validation, so that none is made twice."""
    validation_due: bool = False
    """A validation at this step was broken off by a signal: a resumed run begins with it."""
    values: Dict[str, float] = field(default_factory=dict)
    """Loss and metrics by tag, as the last validation found them."""
    best: Optional[Best] = None
    """{"metric", "value", "step", "loss"} of the best validation."""
    unmoved: Unmoved = field(default_factory=dict)
    """Record of whether the monitored value has ever changed, as `ranking.track_unmoved` returned it last."""
    early_stopping: Mapping[str, Json] = field(default_factory=dict)
    """Last result of `EarlyStopping.check`."""

    @property
    def epoch_number(self) -> int:
        """Returns the epoch that the last finished step belongs to, from 1."""
        return self.epoch + (self.epoch_step > 0)

    def count_step(self, steps_per_epoch: int) -> None:
        """Counts a finished step."""
        self.step += 1
        self.epoch_step += 1
        if self.epoch_step == steps_per_epoch:
            self.epoch, self.epoch_step = self.epoch + 1, 0

    def to_json(self) -> Mapping[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: JsonObject) -> TrainState:
        return cls(**values)
