"""Checks of whole datasets before training: problems, their source locations, and remedies."""
