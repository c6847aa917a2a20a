"""Objects that the training loop, validation and the end of a run share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Optional

from mxtrain.cluster.stopping import SignalStop
from mxtrain.cluster.stragglers import Stragglers
from mxtrain.runtime.gpu_memory import GpuMemoryMeter
from mxtrain.training.actions import ActionList
from mxtrain.training.callback_list import CallbackList
from mxtrain.training.evaluate import Evaluator
from mxtrain.training.plan import Plan, RunData
from mxtrain.training.profiling import Profiling
from mxtrain.training.saving import Saving
from mxtrain.training.step import TrainingStep

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject


@dataclass(frozen=True)
class RunContext:
    """The objects that the loop, the validations and the end of a run share."""

    step: TrainingStep
    """One optimizer update."""
    plan: Plan
    """Lengths, cadences and the monitored metric."""
    data: RunData
    """Loaders."""
    evaluator: Evaluator
    """Evaluates the network on the validation split."""
    build_test_evaluator: Callable[[Optional[JsonObject]], Evaluator]
    """Returns the evaluator of the test split, which chooses no thresholds, for the states of a checkpoint; None: the
    states of now."""
    saving: Saving
    """Saves and loads checkpoints."""
    signals: SignalStop
    """Signals that stop the run, or request a checkpoint."""
    callbacks: CallbackList
    """Callbacks that are notified of events."""
    actions: ActionList = field(default_factory=lambda: ActionList({}, {}))
    """Callbacks that change the run."""


@dataclass(frozen=True)
class Monitors:
    """Objects that observe the devices and workers of a run while it trains."""

    profiling: Optional[Profiling] = None
    """Profiles single steps; None = no profiling."""
    stragglers: Stragglers = field(default_factory=Stragglers)
    """Measures the speed of the workers and detects slow ones."""
    gpu_memory: GpuMemoryMeter = field(default_factory=lambda: GpuMemoryMeter([]))
    """Measures the memory in use on the GPUs of this process."""
