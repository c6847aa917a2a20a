"""The state of a run that is not in arrays. With the arrays, it is all that a checkpoint needs to continue exactly."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional

if TYPE_CHECKING:
    from mxtrain.checkpoint.ranking import Unmoved
    from mxtrain.types.annotations import Best, Json, JsonObject


class LoopValues(NamedTuple):
    """Values of the validation split that a custom loop has measured with the current weights."""

    values: Mapping[str, float] = MappingProxyType({})
    """Metrics of the evaluator; empty if they were not measured."""
    more: Mapping[str, float] = MappingProxyType({})
    """Metrics of the loop's own functions, written to the same row of metrics.jsonl."""


NOT_MEASURED = LoopValues()


@dataclass
class TrainState:
    """Counters and values of a run on the host. All counts are of finished work."""

    step: int = 0
    """Finished optimizer steps."""
    epoch: int = 0
    """Finished epochs."""
    epoch_step: int = 0
    """Finished steps of the current epoch; 0 between epochs."""
    epoch_sums: List[float] = field(default_factory=list)
    """Sums of loss and metrics over the current epoch, in the layout of `Meter`."""
    window_sums: List[float] = field(default_factory=list)
    """The same sums over the steps since the last point of the training curves."""
    validated_step: int = 0
    """Step of the last validation, so that no step is validated twice."""
    validation_due: bool = False
    """True if a signal interrupted the validation of this step: a resumed run begins with it."""
    values: Dict[str, float] = field(default_factory=dict)
    """Loss and metrics of the last validation by tag, e.g. {"val/accuracy": 0.99}."""
    best: Optional[Best] = None
    """{"metric", "value", "step", "loss"} of the best validation."""
    unmoved: Unmoved = field(default_factory=dict)
    """Last result of `ranking.track_unmoved`: whether the monitored value has ever changed."""
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
