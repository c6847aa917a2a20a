"""Builds validated objects from plain nested dicts: `specs.build_spec` imports a `_target_` and checks its fields."""
