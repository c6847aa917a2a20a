"""Kinds of samples and targets of forecasting."""

from __future__ import annotations

from typing import ClassVar

from mxtrain.types.kinds import SampleKind, TargetKind


class SeriesPasts(SampleKind):
    """The past of a time series: values and flags of known values (B, P), facts of past and future steps (B, P + H,
    K)."""

    name: ClassVar[str] = "series"


class FutureValues(TargetKind):
    """The values that follow the past of a series, with flags of known values, (B, H) each."""
