"""Measured peak speed of a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Peak speed of a device.

    Attributes:
        flops: floating-point operations per second in float32; a multiplication and an addition are two.
        low_flops: the same in the low precision of the run; equal to `flops` without mixed precision.
        moved: bytes read and written per second.
    """

    flops: float
    low_flops: float
    moved: float
