"""Shared parts of detection networks: encoding of boxes as targets, and decoding of outputs to boxes."""
