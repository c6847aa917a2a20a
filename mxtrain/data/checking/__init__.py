"""Checks of whole datasets before training: what is wrong, where it stands, and what to do."""
