"""Plain nested dicts become validated objects: `specs.build_spec` imports a `_target_` and checks its fields."""
