"""Composes configurations with Hydra and explains wrong overrides. Only this package and `cluster.launch` use Hydra."""
