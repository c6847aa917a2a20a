"""Boxes of objects in images: datasets, networks, losses, metrics and the task."""
