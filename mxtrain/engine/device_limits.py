"""The highest speed of a device, as it was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The highest speed of a device.

    Attributes:
        flops: multiplications and additions per second, in float32.
        low_flops: the same with shorter numbers, where the run uses them.
        moved: bytes read and written per second.
    """

    flops: float
    low_flops: float
    moved: float
