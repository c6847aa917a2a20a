"""Environments that a network acts in: roll-outs to learn from, and whole episodes to measure it by."""
