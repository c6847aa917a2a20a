"""The measurements behind `scripts/bench`: one module per part, whose `measure` returns a `Measured`."""
