"""Metrics as sums on the device: a step adds one small vector and nobody waits for it."""
