"""Signals that stop this process, and heartbeats that it sends. Both start first, so imports here must be cheap."""
