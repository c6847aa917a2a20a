"""Kinds of samples and targets of reinforcement learning."""

from __future__ import annotations

from typing import ClassVar

from mxtrain.types.kinds import SampleKind, TargetKind


class Observations(SampleKind):
    """Observations of an environment, (B, N)."""

    name: ClassVar[str] = "observations"


class Returns(TargetKind):
    """Actions of a roll-out with their returns and advantages."""
