"""Metrics as sums on the device: a step adds one small vector without waiting for it."""
