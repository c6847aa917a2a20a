"""The objects of a run that its loop, its validations and its end share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from mxtrain.cluster.stragglers import Stragglers
from mxtrain.process.stopping import SignalStop
from mxtrain.runtime.gpu_memory import GpuMemoryMeter
from mxtrain.training.actions import ActionList
from mxtrain.training.callback_list import CallbackList
from mxtrain.training.evaluate import Evaluator
from mxtrain.training.plan import Plan, RunData
from mxtrain.training.profiling import Profiling
from mxtrain.training.saving import Saving
from mxtrain.training.step import TrainingStep


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
    """Measures the validation and the test split."""
    saving: Saving
    """Store of the checkpoints."""
    signals: SignalStop
    """By which a person stops the run."""
    callbacks: CallbackList
    """The callbacks."""
    actions: ActionList = field(default_factory=lambda: ActionList({}, {}))
    """Callbacks that change the run."""


@dataclass(frozen=True)
class Monitors:
    """Objects that look at the devices and workers of a run while it trains."""

    profiling: Optional[Profiling] = None
    """Looks at the engine now and then; None = nothing does."""
    stragglers: Stragglers = field(default_factory=Stragglers)
    """Looks at the workers."""
    gpu_memory: GpuMemoryMeter = field(default_factory=lambda: GpuMemoryMeter([]))
    """Looks at the devices of this process."""
