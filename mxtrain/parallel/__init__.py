"""Placement strategies: where the arithmetic of a step happens."""
